// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/simulate/charging.h"

#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/world.h"

namespace oktopk::charging_test {
namespace {

using conformance::Message;

TEST(Charging, charges_what_arrived_from_others_when_it_has) {
  run_world("threads", 3, [](Communicator& comm) {
    std::vector<double> charged;
    ChargingCommunicator charging(comm, 0.5, [&](double seconds) { charged.push_back(seconds); });
    const Message out(40 + static_cast<std::size_t>(comm.rank()));
    Message in(100), own(100);
    const Send sends[] = {{neighbour(comm, 1), out}, {comm.rank(), out}};
    Recv recvs[] = {{neighbour(comm, -1), in, 0}, {comm.rank(), own, 0}};
    Pending pending = charging.start(sends, recvs);
    EXPECT_TRUE(charged.empty());
    pending.wait();
    ASSERT_EQ(charged.size(), 1U);
    EXPECT_EQ(charged[0], 0.5 * (40 + neighbour(comm, -1)));
    barrier(charging);  // brings no bytes
    EXPECT_EQ(charged.size(), 1U);
  });
}

TEST(Charging, charges_each_of_several_open_exchanges_for_itself) {
  run_world("threads", 2, [](Communicator& comm) {
    std::vector<double> charged;
    ChargingCommunicator charging(comm, 1, [&](double seconds) { charged.push_back(seconds); });
    const Message one(10), two(20);
    Message in_one(10), in_two(20);
    const Send send_one{neighbour(comm, 1), one}, send_two{neighbour(comm, 1), two};
    Recv recv_one{neighbour(comm, 1), in_one, 0}, recv_two{neighbour(comm, 1), in_two, 0};
    Pending first = charging.start({&send_one, 1}, {&recv_one, 1});
    Pending second = charging.start({&send_two, 1}, {&recv_two, 1});
    second.wait();
    first.wait();
    EXPECT_EQ(charged, (std::vector<double>{20, 10}));
  });
}

TEST(Charging, parts_charge_the_same_and_nothing_else_changes) {
  run_world("threads", 4, [](Communicator& comm) {
    double charged = 0;
    ChargingCommunicator charging(comm, 2, [&](double seconds) { charged += seconds; });
    conformance::survives_a_storm(charging);
    conformance::splits_by_color_and_key(charging);
    charged = 0;
    const auto part = charging.split(comm.rank() % 2, 0);
    charged = 0;
    Workspace work;
    std::vector<std::byte> mine(7), all(14);
    allgather(*part, mine, all, work);
    EXPECT_EQ(charged, 14);
  });
}

TEST(Charging, refuses_senseless_prices) {
  run_world("threads", 1, [](Communicator& comm) {
    const auto charge = [](double) {};
    EXPECT_THROW(ChargingCommunicator(comm, -1, charge), UsageError);
    EXPECT_THROW(ChargingCommunicator(comm, std::numeric_limits<double>::infinity(), charge), UsageError);
    EXPECT_THROW(ChargingCommunicator(comm, 1, nullptr), UsageError);
  });
}

}  // namespace
}  // namespace oktopk::charging_test
