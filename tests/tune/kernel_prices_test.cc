// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/prices.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/world.h"

namespace oktopk::kernel_prices_test {
namespace {

double steady() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Profile measure(Communicator& comm, const Clock& now, double budget, std::size_t values) {
  Profile profile;
  measure_kernels(comm, now, budget, {.values = values}, profile);
  return profile;
}

TEST(KernelPrices, are_positive_and_equal_on_all_ranks) {
  const auto all = gather_world("threads", 3, [](Communicator& comm) { return measure(comm, steady, 0.02, 1 << 16); });
  for (const Profile& profile : all) {
    const Machine& machine = profile.machine;
    EXPECT_GT(machine.gamma, 0);
    EXPECT_GT(machine.delta, 0);
    EXPECT_GT(machine.sigma, 0);
    EXPECT_LT(machine.sigma, 1e-6);
    EXPECT_EQ(machine.gamma, all[0].machine.gamma);
    EXPECT_EQ(machine.delta, all[0].machine.delta);
    EXPECT_EQ(machine.sigma, all[0].machine.sigma);
    EXPECT_EQ(profile.index_seconds, all[0].index_seconds);
    EXPECT_EQ(profile.value_seconds, all[0].value_seconds);
    for (const double s : profile.index_seconds) EXPECT_GE(s, 0);
    for (const double s : profile.value_seconds) EXPECT_GE(s, 0);
  }
}

// The clock moves by one tick whenever it is read, so every run takes equally long: no coding costs more than the plain
// one, and the prices follow from the numbers of entries and values alone.
TEST(KernelPrices, are_per_entry_and_per_value) {
  const auto all = gather_world("threads", 2, [](Communicator& comm) {
    double seconds = 0;
    const double tick = comm.rank() == 1 ? 2 : 1;  // the slower rank counts
    return measure(
        comm, [&] { return seconds += tick; }, 1, 1000);
  });
  EXPECT_DOUBLE_EQ(all[0].machine.delta, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(all[0].machine.sigma, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(all[0].machine.gamma, 2.0 / (5 * 5242));
  EXPECT_EQ(all[0].index_seconds, (std::array<double, kIndexCodingCount>{}));
  EXPECT_EQ(all[0].value_seconds, (std::array<double, kValueCodingCount>{}));
}

}  // namespace
}  // namespace oktopk::kernel_prices_test
