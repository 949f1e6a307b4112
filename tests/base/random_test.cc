// SPDX-License-Identifier: Apache-2.0
// Random must give the same numbers on every machine and for ever: generated inputs, and with them
// the numbers in docs and regressions, depend on it.
#include "oktopk/base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace oktopk::random_test {
namespace {

TEST(Random, next_is_splitmix64) {
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafU);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(random.next(), 0x06c45d188009454fU);
  EXPECT_EQ(random.next(), 0xf88bb8a8724c81ecU);
}

TEST(Random, streams_of_one_seed_are_pinned) {
  Random random(1, 2, 3);
  EXPECT_EQ(random.next(), 0x73114e6f6c5f9792U);
  EXPECT_EQ(random.next(), 0x07e07833645f8893U);
}

TEST(Random, streams_of_neighbouring_numbers_differ) {
  std::set<std::uint64_t> first;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (std::uint64_t a = 0; a < 32; ++a)
      for (std::uint64_t b = 0; b < 32; ++b) first.insert(Random(seed, a, b).next());
  EXPECT_EQ(first.size(), 8u * 32 * 32);
}

TEST(Random, below_reaches_every_value_and_no_other) {
  Random random(7);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.below(10));
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.rbegin(), 9u);
}

TEST(Random, uniform_is_open_and_even) {
  Random random(8);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = random.uniform();
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(Random, normal_has_mean_zero_and_unit_variance) {
  Random random(9);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / 100000, 0, 0.02);
  EXPECT_NEAR(squares / 100000, 1, 0.02);
  EXPECT_NEAR(fourth / 100000, 3, 0.2);
}

TEST(Random, normal_is_pinned) {
  Random random(1);
  EXPECT_NEAR(random.normal(), -0.028249746095854695, 1e-12);
  EXPECT_NEAR(random.normal(), -0.22791952286763517, 1e-12);
}

}  // namespace
}  // namespace oktopk::random_test
