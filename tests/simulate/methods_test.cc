// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/methods.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"

namespace oktopk::methods_test {
namespace {

const Machine kKernels{.gamma = 3e-9, .delta = 2.5e-10, .sigma = 2.5e-10};
const Problem kProblem{.n = 25e6, .k = 25e4, .P = 64};

TEST(SimulatedMethods, published_presets_are_as_published) {
  const Profile profile = profile_of(find_platform("flat-25g"), kKernels);
  const auto methods = choose_methods({"dense", "topka", "oktopk", "spardl"}, {}, kProblem, profile);
  for (const Method& m : methods) {
    EXPECT_EQ(m.codec, Codec{}) << m.preset;
    EXPECT_EQ(m.group, 1) << m.preset;
  }
}

TEST(SimulatedMethods, circulant_and_auto_are_tuned_to_the_platform) {
  const Profile slow = profile_of(find_platform("wan"), kKernels);
  const auto methods = choose_methods({"circulant", "auto"}, {}, kProblem, slow);
  EXPECT_EQ(methods[0].preset, "circulant");
  EXPECT_FALSE(methods[0].codec.lossless());
  EXPECT_NE(methods[1].preset, "dense");
  const auto given = choose_methods({"circulant"}, {.codec = "coo32+fp32", .skips = "direct"}, kProblem, slow);
  EXPECT_EQ(given[0].codec, Codec{});
  EXPECT_EQ(given[0].skips, "direct");
}

TEST(SimulatedMethods, groups_are_for_sparse_presets) {
  const Profile profile = profile_of(find_platform("gpu-nodes"), kKernels);
  const auto methods = choose_methods({"dense", "topka"}, {.group = 8}, kProblem, profile);
  EXPECT_EQ(methods[0].group, 1);
  EXPECT_EQ(methods[1].group, 8);
}

TEST(SimulatedMethods, a_platform_of_nodes_is_cheaper_for_leaders_alone) {
  const Profile nodes = profile_of(find_platform("gpu-nodes"), kKernels);
  EXPECT_EQ(nodes.ranks_per_host, 8);
  EXPECT_DOUBLE_EQ(nodes.machine.beta, 8 * nodes.leaders->beta);
  EXPECT_LT(nodes.inside->beta, nodes.leaders->beta);
  EXPECT_FALSE(profile_of(find_platform("flat-25g"), kKernels).leaders);
}

TEST(SimulatedMethods, unfit_wishes_are_refused) {
  EXPECT_THROW(check({.codec = "nonesuch"}), UsageError);
  EXPECT_THROW(check({.group = 0}), UsageError);
  EXPECT_THROW(check({.thresholds = "guessed"}), UsageError);
  check({});
}

}  // namespace
}  // namespace oktopk::methods_test
