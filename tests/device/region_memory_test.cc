// SPDX-License-Identifier: Apache-2.0
// Against a plain array that is scanned in every step.
#include "oktopk/device/region_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/sparse.h"

namespace oktopk {
namespace {

// The same, without records: every call visits everything.
class Plain {
 public:
  explicit Plain(Range region) : region_(region), values_(region.width(), 0.0F) {}

  void add(CooView v) {
    for (std::size_t j = 0; j < v.size(); ++j) values_[v.idx[j] - region_.begin] += v.val[j];
  }

  SparseVector take(float threshold) {
    SparseVector taken;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] == 0 || std::fabs(values_[i]) < threshold) continue;
      taken.push_back(static_cast<Index>(region_.begin + i), values_[i]);
      values_[i] = 0;
    }
    return taken;
  }

  MagnitudeHistogram bins() const {
    MagnitudeHistogram bins{};
    for (const float x : values_)
      if (x != 0) ++bins[magnitude_bin(x)];
    return bins;
  }

  std::vector<float> values_copy() const { return values_; }
  void scale(float factor) {
    for (float& x : values_) x *= factor;
  }

 private:
  Range region_;
  std::vector<float> values_;
};

SparseVector random_part(std::mt19937& random, Range region, double density) {
  std::normal_distribution<float> normal;
  std::bernoulli_distribution chosen(density);
  SparseVector v;
  for (Index i = region.begin; i < region.end; ++i)
    if (chosen(random)) v.push_back(i, normal(random));
  return v;
}

std::vector<float> list(std::span<const float> x) { return {x.begin(), x.end()}; }

class RegionMemoryWidth : public testing::TestWithParam<Index> {};

// Thresholds rise, fall slowly and fall at once; parts cancel each other now and then.
TEST_P(RegionMemoryWidth, add_take_equals_a_full_scan_over_many_steps) {
  const Range region{1000, 1000 + GetParam()};
  const auto device = make_cpu_device();
  std::mt19937 random(GetParam());
  RegionMemory memory;
  memory.reset(region);
  Plain plain(region);
  float threshold = 1;
  for (int step = 0; step < 60; ++step) {
    const SparseVector a = random_part(random, region, 0.05);
    SparseVector b = random_part(random, region, 0.02);
    if (step % 7 == 3) {  // takes a back, so that zeros appear
      b = a;
      for (float& x : b.val) x = -x;
    }
    const std::array<CooView, 2> parts = {a, b};
    threshold *= step % 20 == 11 ? 0.3F : step % 3 == 0 ? 1.04F : 0.97F;
    if (step == 40) threshold = 0;
    SparseVector taken;
    memory.add_take(*device, parts, threshold, taken);
    plain.add(a);
    plain.add(b);
    const SparseVector expected = plain.take(threshold);
    ASSERT_EQ(list_of(taken), list_of(expected)) << "step " << step;
    ASSERT_EQ(list(memory.values()), plain.values_copy()) << "step " << step;
    ASSERT_EQ(memory.bins(), plain.bins()) << "step " << step;
    if (step == 40) threshold = 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, RegionMemoryWidth,
                         testing::Values(0, 1, 63, 64, 8191, 8192, 20000),
                         testing::PrintToStringParamName());

TEST(RegionMemory, add_take_without_parts_takes_what_was_added_before) {
  const auto device = make_cpu_device();
  RegionMemory memory;
  memory.reset({10, 200});
  memory.add(make_sparse({{10, 1}, {50, -3}, {199, 2}}));
  SparseVector taken;
  memory.add_take(*device, {}, 2.0F, taken);
  EXPECT_EQ(list_of(taken), (EntryList{{50, -3}, {199, 2}}));
  memory.add_take(*device, {}, 1.0F, taken);
  EXPECT_EQ(list_of(taken), (EntryList{{10, 1}}));
  memory.add_take(*device, {}, 0.0F, taken);
  EXPECT_TRUE(taken.empty());
}

TEST(RegionMemory, load_and_scale_keep_values_and_records_in_step) {
  const auto device = make_cpu_device();
  const Range region{5, 505};
  std::mt19937 random(3);
  Plain plain(region);
  plain.add(random_part(random, region, 0.5));
  RegionMemory memory;
  memory.load(region, plain.values_copy());
  EXPECT_EQ(memory.bins(), plain.bins());
  SparseVector taken;
  memory.add_take(*device, {}, 1.5F, taken);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  memory.scale(*device, 4);
  plain.scale(4);
  EXPECT_EQ(memory.bins(), plain.bins());
  memory.add_take(*device, {}, 1.5F, taken);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  EXPECT_FALSE(taken.empty());
  memory.scale(*device, 0);
  EXPECT_EQ(memory.bins(), MagnitudeHistogram{});
  memory.add_take(*device, {}, 0, taken);
  EXPECT_TRUE(taken.empty());
}

}  // namespace
}  // namespace oktopk
