// SPDX-License-Identifier: Apache-2.0
// check_equal(): one flipped bit is found, and the rank is named by majority on every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::divergence_test {
namespace {

struct Weights {
  int P = 3;
  std::vector<int> flipped = {};  // ranks with another bit at byte `at`
  std::size_t size = 100;
  std::size_t at = 0;
};

void expect_everywhere(const Weights& w, const std::string& text) {
  run_world("threads", w.P, [&](Communicator& comm) {
    Workspace work;
    std::vector<std::byte> weights(w.size, std::byte{7});
    if (std::ranges::count(w.flipped, comm.rank()) > 0) weights[w.at] ^= std::byte{16};
    EXPECT_EQ(message_of<Divergence>([&] { check_equal(comm, "weights", weights, 41, work); }), text);
    barrier(comm);  // the communicator lives
  });
}

TEST(Divergence, equal_weights_pass) {
  for (const int P : {1, 2, 3, 5}) expect_everywhere({.P = P, .size = 1000}, "accepted");
  expect_everywhere({.size = 0}, "accepted");
}

TEST(Divergence, one_bit_anywhere_names_the_rank) {
  for (const std::size_t size : {1U, 31U, 32U, 33U, 1000U})
    for (std::size_t at = 0; at < size; at += 7)
      expect_everywhere({3, {2}, size, at}, "weights: rank 2 differs from the other 2 ranks in step 41");
}

TEST(Divergence, several_ranks_are_named_and_without_majority_all) {
  expect_everywhere({7, {0, 3, 6}}, "weights: ranks 0, 3 and 6 differ from the other 4 ranks in step 41");
  expect_everywhere({2, {1}}, "weights: ranks 0 and 1 differ in step 41, and no majority says who is right");
  expect_everywhere({4, {1, 2}}, "weights: ranks 0, 1, 2 and 3 differ in step 41, and no majority says who is right");
}

TEST(Divergence, sizes_count) {
  run_world("threads", 3, [](Communicator& comm) {
    Workspace work;
    const std::vector<std::byte> weights(comm.rank() == 1 ? 8 : 16);
    EXPECT_EQ(message_of([&] { check_equal(comm, "weights", weights, 2, work); }),
              "weights: rank 1 differs from the other 2 ranks in step 2");
  });
}

}  // namespace
}  // namespace oktopk::divergence_test
