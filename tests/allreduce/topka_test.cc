// SPDX-License-Identifier: Apache-2.0
// gaussiank: sizes travel first.
#include <gtest/gtest.h>

#include "oktopk/allreduce/parts/gather.h"
#include "tests/support/runs.h"

namespace oktopk::topka_test {
namespace {

TEST(Gaussiank, run_exchanges_sizes_first_and_gathers_what_was_selected) {
  constexpr int P = 5;
  const History run = run_input(P, preset_options("gaussiank", 1000), 100000, 3, Input::gaussian);
  for (std::size_t step = 1; step < 3; ++step) {
    std::uint64_t selected = 0;
    for (const auto& rank : run) selected += rank[step].selection.size();
    for (const auto& rank : run) {
      const Traffic& t = rank[step].traffic;
      const std::uint64_t others = selected - rank[step].selection.size();
      EXPECT_EQ(t.bytes_received, 8 * others + (P - 1) * (6 + 2 + kSizesBytes));
      EXPECT_EQ(t.messages_sent, 2u * 3);
    }
  }
}

}  // namespace
}  // namespace oktopk::topka_test
