// SPDX-License-Identifier: Apache-2.0
#include "tools/measure.h"

#include <gtest/gtest.h>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"

namespace oktopk::measure_test {
namespace {

TEST(TimingCommunicator, passes_messages_on_and_its_parts_share_the_clock) {
  run_threads(3, [](Communicator& comm) {
    TimingCommunicator timing(comm);
    EXPECT_EQ(timing.seconds(), 0);
    barrier(timing);
    const double before = timing.seconds();
    EXPECT_GT(before, 0);
    const auto part = timing.split(0, timing.rank());
    EXPECT_EQ(part->rank(), comm.rank());
    const double after_split = timing.seconds();
    barrier(*part);
    EXPECT_GT(timing.seconds(), after_split);
    timing.reset();
    EXPECT_EQ(timing.seconds(), 0);
  });
}

}  // namespace
}  // namespace oktopk::measure_test
