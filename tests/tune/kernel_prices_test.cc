// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/kernel_prices.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/world.h"

namespace oktopk::kernel_prices_test {
namespace {

double steady() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

TEST(KernelPrices, are_positive_and_equal_on_all_ranks) {
  const auto all = gather_world("threads", 3, [](Communicator& comm) {
    return measure_kernels(comm, steady, {.budget = 0.02, .values = 1 << 16});
  });
  for (const KernelPrices& prices : all) {
    EXPECT_GT(prices.gamma, 0);
    EXPECT_GT(prices.delta, 0);
    EXPECT_GT(prices.sigma, 0);
    EXPECT_LT(prices.sigma, 1e-6);
    EXPECT_EQ(prices.gamma, all[0].gamma);
    EXPECT_EQ(prices.delta, all[0].delta);
    EXPECT_EQ(prices.sigma, all[0].sigma);
    EXPECT_EQ(prices.index, all[0].index);
    EXPECT_EQ(prices.value, all[0].value);
    for (const double s : prices.index) EXPECT_GE(s, 0);
    for (const double s : prices.value) EXPECT_GE(s, 0);
  }
}

// By a clock that moves as often as it is read: every run takes as long, so no coding costs more
// than the plain one, and prices follow from the numbers of entries and values alone.
TEST(KernelPrices, are_per_entry_and_per_value) {
  const auto prices = gather_world("threads", 2, [](Communicator& comm) {
    double seconds = 0;
    const double tick = comm.rank() == 1 ? 2 : 1;  // the slower rank counts
    return measure_kernels(comm, [&] { return seconds += tick; }, {.budget = 1, .values = 1000});
  });
  EXPECT_DOUBLE_EQ(prices[0].delta, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(prices[0].sigma, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(prices[0].gamma, 2.0 / (5 * 5242));
  EXPECT_EQ(prices[0].index, (std::array<double, 6>{}));
  EXPECT_EQ(prices[0].value, (std::array<double, 4>{}));
}

}  // namespace
}  // namespace oktopk::kernel_prices_test
