// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/trace.h"

#include <array>

#include "oktopk/comm/collectives.h"
#include "tests/support/world.h"

namespace oktopk::trace_test {
namespace {

TEST(Trace, writes_down_every_exchange) {
  run_world("threads", 3, [](Communicator& comm) {
    LoggingCommunicator tracing(comm);
    const std::array<std::byte, 5> out{};
    std::array<std::byte, 10> in{};
    const int next = neighbour(comm, 1);
    const int last = neighbour(comm, -1);
    const std::array<Send, 2> sends = {{{next, out}, {last, out}}};
    std::array<Recv, 2> recvs = {{{next, std::span(in).first(5)}, {last, std::span(in).last(5)}}};
    tracing.exchange(sends, recvs);
    ASSERT_EQ(tracing.exchanges().size(), 1U);
    EXPECT_EQ(tracing.exchanges()[0].messages_received, 2U);
    EXPECT_EQ(tracing.exchanges()[0].bytes_sent, 10U);
    EXPECT_EQ(tracing.exchanges()[0].bytes_received, 10U);
    tracing.reset();
    barrier(tracing);
    ASSERT_EQ(tracing.exchanges().size(), 2U);
    EXPECT_EQ(tracing.exchanges()[1].bytes_received, 0U);
  });
}

}  // namespace
}  // namespace oktopk::trace_test
