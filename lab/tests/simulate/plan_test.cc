// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/plan.h"

#include <gtest/gtest.h>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"

namespace oktopk::plan_test {
namespace {

const Machine kKernels{.gamma = 3e-9, .delta = 2.5e-10, .sigma = 2.5e-10};
const Problem kProblem{.n = 25e6, .k = 25e4, .P = 64};

TEST(ChooseMethod, published_presets_are_as_published) {
  const Profile profile = profile_of(find_platform("flat-25g"), kKernels);
  for (const char* preset : {"dense", "topka", "oktopk", "spardl"}) {
    const Method method = choose_method(preset, {}, kProblem, profile);
    EXPECT_EQ(method.codec, Codec{}) << preset;
    EXPECT_EQ(method.group, 1) << preset;
  }
}

TEST(ChooseMethod, circulant_and_auto_are_tuned_to_the_platform) {
  const Profile slow = profile_of(find_platform("wan"), kKernels);
  const Method circulant = choose_method("circulant", {.codec = "auto"}, kProblem, slow);
  EXPECT_EQ(circulant.preset, "circulant");
  EXPECT_FALSE(circulant.codec.lossless());
  EXPECT_NE(choose_method("auto", {}, kProblem, slow).preset, "dense");
  const Method given = choose_method("circulant", {.codec = "coo32+fp32", .skips = "direct"}, kProblem, slow);
  EXPECT_EQ(given.codec, Codec{});
  EXPECT_EQ(given.skips, "direct");
}

TEST(ChooseMethod, groups_are_for_sparse_presets) {
  const Profile profile = profile_of(find_platform("gpu-nodes"), kKernels);
  EXPECT_EQ(choose_method("dense", {.group = 8}, kProblem, profile).group, 1);
  EXPECT_EQ(choose_method("topka", {.group = 8}, kProblem, profile).group, 8);
}

TEST(ProfileOf, a_platform_of_nodes_is_cheaper_for_leaders_alone) {
  const Profile nodes = profile_of(find_platform("gpu-nodes"), kKernels);
  EXPECT_EQ(nodes.ranks_per_host, 8);
  EXPECT_DOUBLE_EQ(nodes.machine.beta, 8 * nodes.leaders->beta);
  EXPECT_LT(nodes.inside->beta, nodes.leaders->beta);
  EXPECT_EQ(nodes.inside->gamma, kKernels.gamma);
  EXPECT_FALSE(profile_of(find_platform("flat-25g"), kKernels).leaders);
}

TEST(ModelOf, finds_the_overlap_of_supports) {
  EXPECT_NEAR(model_of({.n = 100000, .k = 1000, .P = 16}).union_exponent, 1, 0.02);
  EXPECT_NEAR(model_of({.n = 100000, .k = 1000, .P = 16, .kind = Support::correlated}).union_exponent, 0.7, 0.05);
}

constexpr double kMiB = 1 << 20;

SimulationSpec spec_of(std::string_view preset, Index n, int P) {
  SimulationSpec spec;
  spec.P = P;
  spec.n = n;
  spec.k = n / 100;
  spec.method.preset = preset;
  return spec;
}

TEST(ChooseScale, is_one_where_all_ranks_fit) {
  for (const Preset& preset : presets())
    EXPECT_EQ(choose_scale(spec_of(preset.name, 100000, 16), 4096 * kMiB), 1) << preset.name;
}

TEST(ChooseScale, grows_with_the_memory_that_a_preset_needs) {
  // At least three times n values on each rank; the selections of all ranks on each.
  EXPECT_EQ(choose_scale(spec_of("dense", 1 << 20, 64), 900 * kMiB), 2);
  EXPECT_GE(choose_scale(spec_of("topka", 1 << 20, 256), 4096 * kMiB), 4);
  EXPECT_EQ(choose_scale(spec_of("spardl", 1 << 20, 256), 4096 * kMiB), 1);
  SimulationSpec paper = spec_of("oktopk", 1 << 20, 64);
  const double memory = 300 * kMiB;
  EXPECT_EQ(choose_scale(paper, memory), 1);
  paper.thresholds = ThresholdRule::paper;  // gathers unions
  EXPECT_GT(choose_scale(paper, memory), 1);
  SimulationSpec nodes = spec_of("spardl", 1 << 20, 64);
  EXPECT_EQ(choose_scale(nodes, memory), 1);
  nodes.method.group = 8;  // sums n values on each rank
  EXPECT_GT(choose_scale(nodes, memory), 1);
}

TEST(ChooseScale, refuses_problems_that_would_become_too_small) {
  EXPECT_THROW(choose_scale(spec_of("circulant", 1 << 20, 64), 0.1 * kMiB), UsageError);
}

}  // namespace
}  // namespace oktopk::plan_test
