// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_row.h"

#include <gtest/gtest.h>

namespace oktopk::kernel_row_test {
namespace {

KernelRow coding() {
  return {.kernel = "index",
          .bytes = 4000,
          .entries = 1000,
          .bits = 9.5,
          .times = {.kernel = {.median = 2e-6}, .limit = {.median = 1e-6}}};
}

TEST(KernelRow, value_has_every_measure) {
  const KernelRow row = coding();
  EXPECT_DOUBLE_EQ(row.value(Measure::ratio), 2);
  EXPECT_DOUBLE_EQ(row.value(Measure::nanoseconds), 2);
  EXPECT_DOUBLE_EQ(row.value(Measure::bits), 9.5);
  EXPECT_DOUBLE_EQ(row.bandwidth(), 2e9);
}

TEST(KernelRow, verdict_needs_every_number_to_be_met) {
  KernelRow row = coding();
  EXPECT_EQ(row.verdict(), "");
  row.reach = {{Measure::bits, 10.1}, {Measure::nanoseconds, 2.5}};
  EXPECT_EQ(row.verdict(), "10.1 bits, 2.5 ns ok");
  row.reach = {{Measure::bits, 10.1}, {Measure::nanoseconds, 0.2}};
  EXPECT_EQ(row.verdict(), "10.1 bits, 0.2 ns over");
  row.reach = {{Measure::ratio, 1.05}};
  EXPECT_EQ(row.verdict(), "1.05 x over");
}

TEST(KernelRow, ratio_without_a_limit_is_zero) { EXPECT_EQ(KernelRow{}.times.ratio(), 0); }

}  // namespace
}  // namespace oktopk::kernel_row_test
