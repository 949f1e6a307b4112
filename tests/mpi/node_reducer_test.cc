// SPDX-License-Identifier: Apache-2.0
// NodeReducer on real processes: nodes found by host. The tests run on one machine, so that there is one host, one
// leader, and nothing to exchange with others.
#include "oktopk/reduce/node_reducer.h"

#include <gtest/gtest.h>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/laws.h"
#include "tests/support/training.h"

namespace oktopk::node_reducer_test {
namespace {

class MpiNodes : public testing::TestWithParam<std::string> {};

// A node of three or more ranks sums by regions. Nodes of two: mpi_verify_nodes_5 (tests/command.cmake).
TEST_P(MpiNodes, laws_hold_in_the_node_of_a_host) {
  const auto comm = make_mpi_world();
  Trial trial{.n = 6000};
  trial.options = preset_options(GetParam(), trial.n / 20);
  trial.options.allreduce.tau = 4;
  trial.options.allreduce.tau_prime = 3;
  trial.group = 0;
  std::vector<Finding> findings = check_steps(*comm, trial);
  findings.push_back(check_restore(*comm, trial));
  for (const Finding& f : findings) EXPECT_TRUE(f.holds) << f.law << ": " << f.detail;
}

INSTANTIATE_TEST_SUITE_P(Presets, MpiNodes, testing::Values("circulant", "oktopk", "gtopk"),
                         [](const auto& test) { return test.param; });

TEST(MpiHost, all_ranks_of_a_host_have_one_leader_and_get_the_dense_mean) {
  constexpr Index n = 500;
  const auto comm = make_mpi_world();
  NodeReducer nodes(*comm, n, preset_options("circulant", n));
  EXPECT_EQ(nodes.node_size(), comm->size());
  EXPECT_EQ(std::vector<int>(nodes.leaders().begin(), nodes.leaders().end()), std::vector<int>{0});
  EXPECT_EQ(nodes.reducer() != nullptr, comm->rank() == 0);
  const auto gradient = make_input(Input::dyadic, n, comm->rank(), 0, 1);
  const Dense mean = spread(nodes.step(gradient), n);  // k = n
  const Dense sum = sum_over_ranks(*comm, gradient);
  for (std::size_t i = 0; i < n; ++i)
    EXPECT_EQ(static_cast<float>(mean[i]), static_cast<float>(sum[i]) / static_cast<float>(comm->size())) << i;
}

}  // namespace
}  // namespace oktopk::node_reducer_test
