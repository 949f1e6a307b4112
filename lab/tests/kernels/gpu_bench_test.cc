// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk-lab kernels --device cuda`. Without a GPU all but the goals is skipped.
#include "lab/kernels/gpu_bench.h"

#include <gtest/gtest.h>

#include <set>

#include "oktopk/base/error.h"

namespace oktopk::gpu_bench_test {
namespace {

class GpuBenchRows : public testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu_ = std::make_unique<TimedGpu>(0);
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::vector<nlohmann::json> rows_of(Index n, std::size_t k, const GpuBench::Options& options) const {
    const GpuData data(*gpu_, inputs()[0], n, 1);
    std::vector<nlohmann::json> rows;
    GpuBench(*gpu_, data, k, options, [&](const nlohmann::json& row) { rows.push_back(row); }).run();
    return rows;
  }

  std::unique_ptr<TimedGpu> gpu_;
};

TEST_F(GpuBenchRows, every_kernel_is_timed_once) {
  const auto rows = rows_of(70001, 700, {.repetitions = 1, .ranks = {1, 3}, .only = ""});
  std::set<std::string> names;
  for (const nlohmann::json& row : rows) {
    names.insert(row["kernel"]);
    EXPECT_GT(row["time"], 0) << row["kernel"];
    EXPECT_GT(row["limit_time"], 0) << row["kernel"];
    EXPECT_EQ(row["simd"], "cuda");
    EXPECT_TRUE(row["reach"].empty()) << row["kernel"] << ": n is too small to ask for anything";
  }
  EXPECT_EQ(names.size(), rows.size());
  for (const char* name : {"threshold scan",
                           "accumulate+select fp32",
                           "accumulate+select bf16",
                           "accumulate+select fp16",
                           "accumulate+select, clearing k",
                           "exact top-k",
                           "exact top-k, fused",
                           "accumulate fp32",
                           "accumulate bf16",
                           "accumulate fp16",
                           "finite check",
                           "histogram",
                           "moments",
                           "multiply",
                           "sample",
                           "add_at",
                           "clear_at",
                           "add_take",
                           "slots send P=1",
                           "slots own P=1",
                           "slots apply P=1",
                           "slots step P=1",
                           "slots send P=3",
                           "slots own P=3",
                           "slots apply P=3",
                           "slots step P=3"})
    EXPECT_EQ(names.erase(name), 1U) << name;
  EXPECT_TRUE(names.empty()) << *names.begin();
}

TEST_F(GpuBenchRows, only_leaves_out_all_others) {
  const auto rows = rows_of(5000, 50, {.repetitions = 1, .ranks = {2}, .only = "slots own"});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["kernel"], "slots own P=2");
}

TEST_F(GpuBenchRows, data_of_one_element_is_enough) {
  EXPECT_FALSE(rows_of(1, 1, {.repetitions = 1, .ranks = {2}, .only = ""}).empty());
}

TEST_F(GpuBenchRows, thresholds_are_reached_by_about_k) {
  const Index n = 200000;
  const std::size_t k = 2000;
  const GpuData data(*gpu_, inputs()[0], n, 1);
  SparseVector out;
  const Device& device = gpu_->device();
  device.select_at_least({data.x(), n}, 0, data.threshold(k, false), out);
  EXPECT_NEAR(static_cast<double>(out.size()), 2000, 20);
  // Any gradient of the pool, of any type.
  const DeviceFloats acc = device.allocate(n);
  for (const FloatType type : {FloatType::fp32, FloatType::bf16, FloatType::fp16}) {
    ASSERT_EQ(gpu_->api().copy(gpu_->context(), acc.get(), data.x(), n * sizeof(float)), 0);
    const Gradient gradient(data.gradient(type, 7), n, type);
    EXPECT_NEAR(static_cast<double>(device.accumulate_select({{acc.get(), n}, gradient}, data.threshold(k, true), out)),
                2000, 400);
  }
}

}  // namespace
}  // namespace oktopk::gpu_bench_test
