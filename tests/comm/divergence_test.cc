// SPDX-License-Identifier: Apache-2.0
// check_equal(): one flipped bit is found, and the rank is named by majority on every rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "tests/support/world.h"

namespace oktopk::divergence_test {
namespace {

// The error of each rank, when those in `flipped` have another bit at byte `at` of `size`.
std::vector<std::string> errors(int P, const std::vector<int>& flipped, std::size_t size, std::size_t at) {
  return gather_world("threads", P, [&](Communicator& comm) -> std::string {
    Workspace work;
    std::vector<std::byte> weights(size, std::byte{7});
    for (const int rank : flipped)
      if (rank == comm.rank()) weights[at] ^= std::byte{16};
    std::string error;
    try {
      check_equal(comm, "weights", weights, 41, work);
    } catch (const Divergence& caught) {
      error = caught.what();
    }
    barrier(comm);  // the communicator lives
    return error;
  });
}

void expect_everywhere(const std::vector<std::string>& found, const std::string& text) {
  for (const std::string& error : found) EXPECT_EQ(error, text);
}

TEST(Divergence, equal_weights_pass) {
  for (const int P : {1, 2, 3, 5}) expect_everywhere(errors(P, {}, 1000, 0), "");
  expect_everywhere(errors(3, {}, 0, 0), "");
}

TEST(Divergence, one_bit_anywhere_names_the_rank) {
  for (const std::size_t size : {1U, 31U, 32U, 33U, 1000U})
    for (std::size_t at = 0; at < size; at += 7)
      expect_everywhere(errors(3, {2}, size, at), "weights: rank 2 differs from the other 2 ranks in step 41");
}

TEST(Divergence, several_ranks_are_named) {
  expect_everywhere(errors(7, {0, 3, 6}, 100, 99),
                    "weights: ranks 0, 3 and 6 differ from the other 4 ranks in step 41");
}

TEST(Divergence, without_majority_all_are_named) {
  expect_everywhere(errors(2, {1}, 100, 5),
                    "weights: ranks 0 and 1 differ in step 41, and no majority says who is right");
  expect_everywhere(errors(4, {1, 2}, 100, 5),
                    "weights: ranks 0, 1, 2 and 3 differ in step 41, and no majority says who is right");
}

TEST(Divergence, sizes_count) {
  const auto found = gather_world("threads", 3, [](Communicator& comm) -> std::string {
    Workspace work;
    try {
      check_equal(comm, "weights", std::vector<std::byte>(comm.rank() == 1 ? 8 : 16), 2, work);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  });
  expect_everywhere(found, "weights: rank 1 differs from the other 2 ranks in step 2");
}

}  // namespace
}  // namespace oktopk::divergence_test
