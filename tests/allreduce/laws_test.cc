// SPDX-License-Identifier: Apache-2.0
// AllreduceConformance: every preset with every residual rule that it takes, held to the laws of
// oktopk/laws/laws.h on threads. A new preset needs no line here: the suite sweeps the table. Inputs
// are dyadic, so truth and mass are compared to the last bit. One published combination is known to
// lose mass (gtopk, sender keeps); the suite asserts that the law sees it.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "oktopk/laws/laws.h"
#include "tests/support/patience.h"
#include "tests/support/world.h"

namespace oktopk::laws_test {
namespace {

struct Case {
  std::string preset;
  ResidualKind residual;
  int P;

  std::string name() const { return preset + "_" + std::string(to_string(residual)) + "_P" + std::to_string(P); }
  // As the table of presets says. Two ranks prune nothing that survives elsewhere.
  bool loses_mass() const { return !find_preset(preset).conserves_mass(residual) && P >= 3; }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }

std::vector<Case> cases(std::initializer_list<int> sizes, bool every_rule) {
  std::vector<Case> all;
  for (const Preset& preset : presets())
    for (const ResidualKind residual : preset.residuals) {
      if (!every_rule && residual != preset.residuals.front()) continue;
      for (const int P : sizes) all.push_back({std::string(preset.name), residual, P});
    }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name(); }

Trial make_trial(const Case& c, Input input, Index n) {
  Trial trial;
  trial.options.preset = c.preset;
  trial.options.density = n > 100 ? 0.05 : 0.3;
  trial.options.allreduce.residual = c.residual;
  trial.options.allreduce.tau = 4;
  trial.options.allreduce.tau_prime = 3;
  trial.n = n;
  trial.input = input;
  trial.steps = 8;
  return trial;
}

std::string describe(const Trial& trial) {
  std::string input;
  for (const InputInfo& info : inputs())
    if (info.kind == trial.input) input = info.name;
  return input + ", n = " + std::to_string(trial.n) + ", codec " +
         to_string(trial.options.allreduce.codec.value_or(Codec{})) + ", skips " + trial.options.allreduce.skips;
}

std::vector<Finding> findings_of(int P, const Trial& trial) {
  std::vector<Finding> findings;
  run_world("threads", P, [&](Communicator& comm) {
    auto found = check_steps(comm, trial);
    if (comm.rank() == 0) findings = std::move(found);
  });
  return findings;
}

void expect_laws(const Case& c, const Trial& trial) {
  const std::vector<Finding> findings = findings_of(c.P, trial);
  EXPECT_EQ(findings.size(), 4u);
  for (const Finding& f : findings) {
    if (c.loses_mass() && f.law == "mass") continue;
    EXPECT_TRUE(f.holds) << f.law << ": " << f.detail << " (" << describe(trial) << ")";
  }
}

// A case with an input or a coding, of which the sanitizers leave some out by name.
using CaseWith = std::tuple<Case, std::string>;

std::string case_with_name(const testing::TestParamInfo<CaseWith>& info) {
  const auto& [c, with] = info.param;
  return c.name() + "_" + with;
}

class AllreduceLaws : public testing::TestWithParam<CaseWith> {};

TEST_P(AllreduceLaws, step_any_exact_input_obeys_agreement_truth_mass_honesty) {
  const auto& [c, input] = GetParam();
  std::set<Index> lengths = {1, 2, 64, 2000};
  if (c.P > 1) lengths.insert(static_cast<Index>(c.P) - 1);
  for (const Index n : lengths) expect_laws(c, make_trial(c, find_input(input), n));
}

std::vector<std::string> exact_inputs() {
  std::vector<std::string> names;
  for (const InputInfo& input : inputs())
    if (input.kind >= Input::dyadic) names.emplace_back(input.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Threads, AllreduceLaws,
                         testing::Combine(testing::ValuesIn(cases({1, 2, 3, 4, 5, 7, 8, 12}, true)),
                                          testing::ValuesIn(exact_inputs())),
                         case_with_name);

TEST(GtopkLaws, step_with_sender_keeps_is_seen_to_lose_mass) {
  for (const int P : {3, 4, 5, 7, 8, 12}) {
    const Case c{"gtopk", ResidualKind::sender_keeps, P};
    for (const Finding& f : findings_of(P, make_trial(c, Input::dyadic, 2000)))
      EXPECT_EQ(f.holds, f.law != "mass") << "P = " << P << ", " << f.law << ": " << f.detail;
  }
}

class AllreduceRestoreLaws : public testing::TestWithParam<Case> {};

TEST_P(AllreduceRestoreLaws, run_stopped_in_the_middle_goes_on_and_owes_what_was_owed) {
  const Case& c = GetParam();
  for (const std::string codec : {"coo32+fp32", "elias_fano+log8"})
    for (const Input input : {Input::dyadic, Input::skewed, Input::zero})
      for (const Index n : {Index{1}, Index{300}}) {
        Trial trial = make_trial(c, input, n);
        trial.options.allreduce.codec = parse_codec(codec);
        trial.options.warmup = {{1, 1}, {1, 0.5}};
        run_world("threads", c.P, [&](Communicator& comm) {
          const Finding f = check_restore(comm, trial);
          EXPECT_TRUE(f.holds) << f.detail << " (" << describe(trial) << ")";
        });
      }
}

INSTANTIATE_TEST_SUITE_P(Threads, AllreduceRestoreLaws, testing::ValuesIn(cases({1, 3, 4}, true)), case_name);

class AllreduceCodecLaws : public testing::TestWithParam<CaseWith> {};

TEST_P(AllreduceCodecLaws, step_any_codec_obeys_agreement_truth_mass_honesty) {
  const auto& [c, index] = GetParam();
  Trial trial = make_trial(c, Input::dyadic, 2000);
  trial.steps = 4;
  for (const std::string value : {"fp32", "bf16", "log8", "log4"}) {
    trial.options.allreduce.codec = parse_codec(index + "+" + value);
    expect_laws(c, trial);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, AllreduceCodecLaws,
                         testing::Combine(testing::ValuesIn(cases({3, 4}, true)),
                                          testing::Values("coo32", "u16_blocks", "bit_packed", "elias_fano", "bitmap")),
                         case_with_name);

class CirculantSkipLaws : public testing::TestWithParam<int> {};

TEST_P(CirculantSkipLaws, step_with_any_skip_list_obeys_all) {
  const int P = GetParam();
  std::vector<std::string> lists = {"direct", "halving", "power", "grid", "radix:3"};
  if (P == 8) lists.insert(lists.end(), {"8,4,2,1", "8,5,3,1", "8,7,6,5,4,3,2,1"});
  if (P == 12) lists.insert(lists.end(), {"12,4,2,1", "12,11,1"});
  for (const ResidualKind residual : {ResidualKind::owner_memory, ResidualKind::sender_keeps})
    for (const std::string& skips : lists)
      for (const Input input : {Input::dyadic, Input::skewed}) {
        const Case c{"circulant", residual, P};
        Trial trial = make_trial(c, input, 2000);
        trial.options.allreduce.skips = skips;
        trial.steps = 4;
        expect_laws(c, trial);
      }
}

INSTANTIATE_TEST_SUITE_P(Threads, CirculantSkipLaws, testing::ValuesIn(kWorldSizes));

// The preset's own residual rule on a small problem.
Trial small_trial(const Case& c) {
  Trial trial = make_trial({c.preset, ResidualKind::none, c.P}, Input::dyadic, 300);
  trial.steps = 4;
  return trial;
}

class AllreduceWorldLaws : public testing::TestWithParam<Case> {};

TEST_P(AllreduceWorldLaws, step_under_random_delays_is_unchanged) {
  run_world("threads", GetParam().P, [&](Communicator& comm) {
    const Finding f = check_calm(comm, small_trial(GetParam()));
    EXPECT_TRUE(f.holds) << f.detail;
  });
}

TEST_P(AllreduceWorldLaws, step_with_bad_input_is_refused_and_leaves_no_trace) {
  run_world("threads", GetParam().P, [&](Communicator& comm) {
    const Finding f = check_bad_input(comm, small_trial(GetParam()));
    EXPECT_TRUE(f.holds) << f.detail;
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, AllreduceWorldLaws, testing::ValuesIn(cases({1, 2, 3, 8}, false)), case_name);

// Each fault is waited for: these cases sleep.
class AllreduceCourage : public testing::TestWithParam<Case> {};

TEST_P(AllreduceCourage, step_with_a_faulty_peer_is_an_error_everywhere) {
  const Finding f = find_courage(GetParam().P, small_trial(GetParam()));
  EXPECT_TRUE(f.holds) << f.detail;
}

INSTANTIATE_TEST_SUITE_P(Threads, AllreduceCourage, testing::ValuesIn(cases({2, 3, 5}, false)), case_name);

// dense in bf16, by either schedule: the preset of which a codec makes another algorithm.
struct DenseCase {
  DenseSchedule schedule;
  int P;
};

Trial dense_trial(const DenseCase& c, Input input, Index n) {
  Trial trial = make_trial({"dense", ResidualKind::none, c.P}, input, n);
  trial.options.allreduce.codec = parse_codec("coo32+bf16");
  trial.options.allreduce.dense = c.schedule;
  return trial;
}

class DenseBf16Laws : public testing::TestWithParam<DenseCase> {};

TEST_P(DenseBf16Laws, step_any_exact_input_obeys_agreement_truth_mass_honesty) {
  const DenseCase& c = GetParam();
  for (const InputInfo& input : inputs()) {
    if (input.kind < Input::dyadic) continue;
    for (const Index n : {1U, 64U, 2001U}) {
      Trial trial = dense_trial(c, input.kind, n);
      trial.steps = 12;
      expect_laws({"dense", ResidualKind::none, c.P}, trial);
    }
  }
}

TEST_P(DenseBf16Laws, run_obeys_restore_calm_and_bad_input) {
  const Trial trial = dense_trial(GetParam(), Input::dyadic, 301);
  run_world("threads", GetParam().P, [&](Communicator& comm) {
    for (const Finding& f : {check_restore(comm, trial), check_calm(comm, trial), check_bad_input(comm, trial)})
      EXPECT_TRUE(f.holds) << f.law << ": " << f.detail;
  });
}

class DenseBf16Courage : public testing::TestWithParam<DenseCase> {};

TEST_P(DenseBf16Courage, step_with_a_faulty_peer_is_an_error_everywhere) {
  const Finding f = find_courage(GetParam().P, dense_trial(GetParam(), Input::dyadic, 300));
  EXPECT_TRUE(f.holds) << f.detail;
}

std::vector<DenseCase> dense_cases(std::span<const int> sizes) {
  std::vector<DenseCase> all;
  for (const DenseSchedule schedule : {DenseSchedule::rabenseifner, DenseSchedule::ring})
    for (const int P : sizes) all.push_back({schedule, P});
  return all;
}

std::string dense_case_name(const testing::TestParamInfo<DenseCase>& info) {
  const bool ring = info.param.schedule == DenseSchedule::ring;
  return std::string(ring ? "ring" : "halving") + "_P" + std::to_string(info.param.P);
}

INSTANTIATE_TEST_SUITE_P(Threads, DenseBf16Laws, testing::ValuesIn(dense_cases(kWorldSizes)), dense_case_name);
INSTANTIATE_TEST_SUITE_P(Threads, DenseBf16Courage, testing::ValuesIn(dense_cases(std::array{2, 3})), dense_case_name);

}  // namespace
}  // namespace oktopk::laws_test
