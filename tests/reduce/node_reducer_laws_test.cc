// SPDX-License-Identifier: Apache-2.0
// NodeReducer held to the laws of oktopk/laws/laws.h, as tests/allreduce/laws_test.cc holds the
// presets to them: every preset with every rule, nodes of 2, 3 and 4 ranks, even and uneven.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "oktopk/laws/laws.h"
#include "tests/support/patience.h"
#include "tests/support/training.h"
#include "tests/support/world.h"

namespace oktopk::node_reducer_laws_test {
namespace {

// A method in nodes of `group` ranks (0: of a host) of P.
struct Case {
  TestedMethod method;
  int group;
  int P;

  std::string name() const {
    return method.name() + "_" + (group == 0 ? "host" : std::to_string(group)) + "_of_" + std::to_string(P);
  }
  Trial trial(Input input, Index n) const {
    Trial trial;
    trial.options = method.options(0);
    trial.options.density = n > 100 ? 0.05 : 0.3;
    trial.group = group;
    trial.n = n;
    trial.input = input;
    trial.steps = 6;
    return trial;
  }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }

std::vector<Case> cases(std::span<const int> sizes, bool every_rule) {
  std::vector<Case> all;
  for (const TestedMethod& method : all_methods()) {
    if (!every_rule && method.rule != find_preset(method.preset).residuals.front()) continue;
    for (const int group : {0, 2, 3, 4})
      for (const int P : sizes)
        if (group <= 2 || group <= P) all.push_back({method, group, P});  // larger: one node again
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name(); }

class NodeLaws : public testing::TestWithParam<Case> {};

// P = 5, 7: the last node is smaller. n = 5000: summed by regions where more than two are, below by
// a tree.
TEST_P(NodeLaws, step_obeys_agreement_truth_mass_honesty) {
  const Case& c = GetParam();
  for (const auto& [input, n] : {std::pair{Input::dyadic, Index{1}},
                                 {Input::skewed, Index{64}},
                                 {Input::tied, Index{300}},
                                 {Input::lonely, Index{300}},
                                 {Input::zero, Index{0}},
                                 {Input::dyadic, Index{5000}}}) {
    if (n > 4096 && c.P != 3 && c.P != 7) continue;  // everything is gathered: slow
    std::vector<Finding> findings;
    const Trial trial = c.trial(input, n);
    run_world("threads", c.P, [&](Communicator& comm) {
      auto found = check_steps(comm, trial);
      if (comm.rank() == 0) findings = std::move(found);
    });
    EXPECT_EQ(findings.size(), 4u);
    for (const Finding& f : findings) EXPECT_TRUE(f.holds) << f.law << ": " << f.detail << " (n = " << n << ")";
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, NodeLaws, testing::ValuesIn(cases(kWorldSizes, true)), case_name);

class NodeWorldLaws : public testing::TestWithParam<Case> {};

TEST_P(NodeWorldLaws, step_under_random_delays_is_unchanged) {
  run_world("threads", GetParam().P, [&](Communicator& comm) {
    const Finding f = check_calm(comm, GetParam().trial(Input::dyadic, 300));
    EXPECT_TRUE(f.holds) << f.detail;
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, NodeWorldLaws, testing::ValuesIn(cases(std::array{1, 2, 3, 5}, false)), case_name);

// Each fault is waited for: these cases sleep.
class NodeCourage : public testing::TestWithParam<Case> {};

TEST_P(NodeCourage, step_with_a_faulty_peer_is_an_error_everywhere) {
  const Finding f = find_courage(GetParam().P, GetParam().trial(Input::dyadic, 300));
  EXPECT_TRUE(f.holds) << f.detail;
}

INSTANTIATE_TEST_SUITE_P(Threads, NodeCourage, testing::ValuesIn(cases(std::array{2, 5}, false)), case_name);

}  // namespace
}  // namespace oktopk::node_reducer_laws_test
