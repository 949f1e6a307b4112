// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/nodes.h"

#include <gtest/gtest.h>

#include "tests/support/world.h"

namespace oktopk::nodes_test {
namespace {

TEST(Nodes, groups_of_consecutive_ranks_are_led_by_their_first) {
  run_world("threads", 5, [](Communicator& comm) {
    Workspace work;
    const Nodes nodes(comm, comm, 2, {}, work);
    EXPECT_EQ(nodes.leader_of, (std::vector<int>{0, 0, 2, 2, 4}));
    EXPECT_EQ(nodes.leaders, (std::vector<int>{0, 2, 4}));
    EXPECT_EQ(nodes.count(), 3);
    EXPECT_EQ(nodes.largest, 2);
    EXPECT_EQ(nodes.leader(), comm.rank() / 2 * 2);
    EXPECT_EQ(nodes.inside->size(), comm.rank() == 4 ? 1 : 2);
    EXPECT_EQ(nodes.inside->rank(), comm.rank() % 2);
    EXPECT_EQ(nodes.outside->size(), comm.rank() % 2 == 0 ? 3 : 2);
  });
}

TEST(Nodes, group_zero_joins_the_ranks_of_a_host) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    const Nodes nodes(comm, comm, 0, {}, work);
    EXPECT_EQ(nodes.leaders, std::vector<int>{0});
    EXPECT_EQ(nodes.inside->size(), 3);
  });
}

}  // namespace
}  // namespace oktopk::nodes_test
