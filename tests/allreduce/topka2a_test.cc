// SPDX-License-Identifier: Apache-2.0
// topka2a: equal messages in the alltoall, dense blocks in the allgather.
#include <gtest/gtest.h>

#include "oktopk/codec/frame.h"
#include "tests/support/runs.h"

namespace oktopk::topka2a_test {
namespace {

TEST(Topka2a, run_moves_2k_plus_n_words_over_P_per_peer) {
  constexpr std::uint64_t k = 1000;
  constexpr std::uint64_t n = 100000;
  for (const std::uint64_t P : {8U, 5U}) {
    const History run = run_input(static_cast<int>(P), preset_options("topka2a", k), n, 3, Input::gaussian);
    const std::uint64_t L = static_cast<std::uint64_t>(ceil_log2(static_cast<int>(P)));
    for (const auto& rank : run)
      for (std::size_t step = 1; step < 3; ++step) {
        const Traffic& t = rank[step].traffic;
        EXPECT_EQ(t.messages_sent, P - 1 + L);
        const std::uint64_t sparse = 8 * k / P + frame_head_bytes({}, k / P);
        const std::uint64_t dense = 4 * n / P + 5;  // checksum, mark; its size takes 3 B
        EXPECT_EQ(t.bytes_sent, (P - 1) * (sparse + dense + 3));
        EXPECT_EQ(t.bytes_received, t.bytes_sent);
      }
  }
}

TEST(Topka2a, run_with_k_below_P_applies_the_union) {
  const History run = run_input(7, preset_options("topka2a", 3), 100, 8, Input::dyadic);
  for (std::size_t step = 0; step < 8; ++step)
    EXPECT_EQ(entries_of(run[4][step].outcome.update), oracle_sum(selections_of(run, step)));
}

}  // namespace
}  // namespace oktopk::topka2a_test
