// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "oktopk/codec/codec.h"

namespace oktopk::kernel_bench_test {
namespace {

std::vector<KernelRow> rows_of(const InputInfo& input, Index n, std::size_t k, const KernelBench::Options& options) {
  const KernelData data(input, n, 1);
  std::vector<KernelRow> rows;
  KernelBench(data, k, options, [&](const KernelRow& row) { rows.push_back(row); }).run();
  return rows;
}

TEST(KernelBench, run_times_every_kernel_once_on_any_data) {
  for (const InputInfo& input : inputs()) {
    if (input.kind == Input::zero) continue;
    const auto rows = rows_of(input, 5000, 50, {.repetitions = 1, .baselines = true});
    std::set<std::string> names;
    for (const KernelRow& row : rows) {
      names.insert(row.kernel);
      EXPECT_GT(row.times.kernel.median, 0) << row.kernel;
      EXPECT_GT(row.times.limit.median, 0) << row.kernel;
      EXPECT_EQ(row.data, input.name);
      EXPECT_TRUE(row.reach.empty()) << row.kernel << ": n is too small to ask for anything";
    }
    EXPECT_EQ(names.size(), rows.size());
    EXPECT_TRUE(names.contains("threshold scan"));
    EXPECT_TRUE(names.contains("std::nth_element"));
    for (const CodingInfo& coding : index_codings())
      EXPECT_TRUE(names.contains("index " + std::string(coding.name) + " decode"));
  }
}

TEST(KernelBench, only_leaves_out_all_others) {
  const auto rows = rows_of(inputs()[0], 1000, 10, {.repetitions = 1, .only = "reduce P=4"});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].kernel, "reduce P=4");
  EXPECT_GT(rows[0].entries, 0);
}

TEST(KernelBench, data_of_one_element_is_enough) {
  EXPECT_FALSE(rows_of(inputs()[0], 1, 1, {.repetitions = 1, .threads = 2}).empty());
}

TEST(KernelData, gradient_leads_to_values_of_the_same_size_and_back) {
  const KernelData data(inputs()[0], 20000, 1);
  double before = 0, after = 0;
  for (std::size_t i = 0; i < data.n; ++i) {
    before += double{data.x[i]} * data.x[i];
    const double next = double{data.x[i]} + data.gradient[i];
    after += next * next;
    EXPECT_NEAR(to_float(data.bf16[i]), data.gradient[i], 0.01 * std::fabs(data.gradient[i]));
    EXPECT_NEAR(to_float(data.fp16[i]), data.gradient[i], 0.001 * std::fabs(data.gradient[i]) + 1e-4);
  }
  EXPECT_NEAR(after / before, 1, 0.05);
}

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
}  // namespace oktopk::kernel_bench_test
