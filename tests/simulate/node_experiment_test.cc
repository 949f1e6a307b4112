// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/node_experiment.h"

#include <gtest/gtest.h>

#include "oktopk/allreduce/parts/dense_sum.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/tune/cost.h"
#include "tests/support/simulated_row.h"
#include "tools/simulate/problem.h"

namespace oktopk::node_experiment_test {
namespace {

// What the library itself does (reduce/node_reducer.cc).
void real_node_sum(Communicator& node, Index n) {
  Workspace work;
  std::vector<float> data(n, 1.0F);
  if (node_sums_by_tree(n, node.size())) return tree_reduce(node, data, work);
  const Cuts regions = equal_cuts(n, node.size());
  const std::vector<std::size_t> cuts(regions.begin(), regions.end());
  dense_reduce_scatter(node, data, cuts, DenseRounds::halving, work);
  gather_regions(node, data, cuts, work);
}

TEST(NodeExperiment, sizes_are_those_of_the_real_sum) {
  for (const int P : {1, 2, 3, 4, 7, 8})
    for (const Index n : {100U, 5003U})
      run_world("threads", P, [&](Communicator& comm) {
        CountingCommunicator real(comm);
        real_node_sum(real, n);
        CountingCommunicator sized(comm);
        Bytes shared(4 * std::size_t{n});
        sized_node_sum(sized, n, shared);
        EXPECT_EQ(sized.traffic().messages_sent, real.traffic().messages_sent);
        EXPECT_EQ(sized.traffic().bytes_sent, real.traffic().bytes_sent);
        EXPECT_EQ(sized.traffic().duplex_bytes, real.traffic().duplex_bytes);
        EXPECT_EQ(sized.traffic().duplex_messages, real.traffic().duplex_messages);
      });
}

// The inside costs time, the outside is that of the leaders.
SimulatedRow run_row(const SimulationSpec& spec, const SimulatedProblem& problem, const Method& method) {
  return simulate_on_threads(spec, problem, "row", method);
}

TEST(NodeExperiment, row_is_that_of_the_leaders_and_the_inside) {
  SimulationSpec spec;
  spec.P = 6;
  spec.support = "iid";
  spec.data_bytes = 1e9;
  SimulatedProblem problem = make_problem({.n = 6000, .k = 60, .P = 6}, false);
  EXPECT_THROW(run_row(spec, problem, {.preset = "topka", .group = 2}), UsageError);
  problem.leaders = {make_problem({.n = 6000, .k = 60, .P = 3}, false)};
  const SimulatedRow row = run_row(spec, problem, {.preset = "topka", .group = 2});
  EXPECT_EQ(row.preset, "row");
  EXPECT_EQ(row.P, 6);
  SimulationSpec leaders = spec;
  leaders.P = 3;
  const SimulatedRow flat = run_row(leaders, problem.leaders.front(), {.preset = "topka"});
  EXPECT_EQ(row.messages, flat.messages);
  EXPECT_EQ(row.bytes, flat.bytes);
  const Cost inside = node_sum_cost(6000, 2) + node_share_entries_cost(flat.selected + 60, 2);
  EXPECT_NEAR(row.steady - flat.steady, inside.values * spec.kernels.delta + inside.entries * spec.kernels.gamma, 1e-9);
}

}  // namespace
}  // namespace oktopk::node_experiment_test
