// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/kernel_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "oktopk/codec/codec.h"

namespace oktopk::kernel_bench_test {
namespace {

std::vector<nlohmann::json> rows_of(const InputInfo& input, Index n, std::size_t k,
                                    const KernelBench::Options& options) {
  const KernelData data(input, n, 1);
  std::vector<nlohmann::json> rows;
  KernelBench(data, k, options, [&](const nlohmann::json& row) { rows.push_back(row); }).run();
  return rows;
}

TEST(KernelBench, run_times_every_kernel_once_on_any_data) {
  for (const InputInfo& input : inputs()) {
    if (input.kind == Input::zero) continue;
    const auto rows = rows_of(input, 5000, 50, {.repetitions = 1, .baselines = true});
    std::set<std::string> names;
    for (const nlohmann::json& row : rows) {
      names.insert(row["kernel"]);
      EXPECT_GT(row["time"], 0) << row["kernel"];
      EXPECT_GT(row["limit_time"], 0) << row["kernel"];
      EXPECT_GT(row["bandwidth"], 0) << row["kernel"];
      EXPECT_EQ(row["data"], input.name);
      EXPECT_TRUE(row["reach"].empty()) << row["kernel"] << ": n is too small to ask for anything";
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
  EXPECT_EQ(rows[0]["kernel"], "reduce P=4");
  EXPECT_GT(rows[0]["ns_per_entry"], 0);
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

TEST(KernelBench, large_data_has_numbers_to_reach) {
  const Index n = 1U << 24U;
  const auto rows = rows_of(inputs()[0], n, n / 100, {.repetitions = 1, .only = "index elias_fano encode"});
  ASSERT_EQ(rows.size(), 1U);
  const nlohmann::json& reach = rows[0]["reach"];
  ASSERT_EQ(reach.size(), 2U);
  EXPECT_EQ(reach[0]["unit"], "bits");
  EXPECT_EQ(reach[0]["value"], rows[0]["bits_per_entry"]);
  EXPECT_EQ(reach[1]["unit"], "ns");
  EXPECT_EQ(reach[1]["value"], rows[0]["ns_per_entry"]);
  for (const nlohmann::json& goal : reach) EXPECT_EQ(goal["met"], goal["value"] <= goal["most"]);
}

TEST(TimedPair, ratio_without_a_limit_is_zero) { EXPECT_EQ(TimedPair{}.ratio(), 0); }

}  // namespace
}  // namespace oktopk::kernel_bench_test
