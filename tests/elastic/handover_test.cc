// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/change.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/world.h"

namespace oktopk::elastic_handover_test {
namespace {

TEST(Handover, gives_all_values_to_one_rank_in_pieces) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{5}, kPieceBytes / 2 + 3}) {
    run_world("threads", 3, [&](Communicator& comm) {
      std::vector<float> values(comm.rank() == 1 ? 0 : n, -1.0F);
      if (comm.rank() == 2) std::iota(values.begin(), values.end(), 0.0F);
      hand_over(comm, {.from = 2, .to = 0}, values, n);
      std::vector<float> expected(comm.rank() == 1 ? 0 : n);
      std::iota(expected.begin(), expected.end(), 0.0F);
      EXPECT_EQ(values, expected);
    });
  }
}

}  // namespace
}  // namespace oktopk::elastic_handover_test
