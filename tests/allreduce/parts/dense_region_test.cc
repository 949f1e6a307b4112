// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/dense_region.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/allreduce/parts/plain_region.h"
#include "tests/support/sparse.h"

namespace oktopk::dense_region_test {
namespace {

std::uint64_t count_common(const SparseVector& a, const SparseVector& b) {
  SparseVector common;
  intersect(a, b.idx, common);
  return common.size();
}

class DenseRegionWidth : public testing::TestWithParam<std::tuple<Index, float>> {};

TEST_P(DenseRegionWidth, add_take_equals_a_full_scan_over_many_steps) {
  const auto [width, window] = GetParam();
  const Range region{1000, 1000 + width};
  const auto device = make_cpu_device();
  std::mt19937 random(width);
  DenseRegion dense;
  dense.reset(region, {});
  PlainRegion plain(region);
  Arrivals next;
  for (int step = 0; step < 60; ++step) {
    next.draw(random, region, 0.05, step);
    dense.add(next.a);
    SparseVector taken;
    NearTail near;
    dense.add_take(*device, next.b, {next.threshold, window}, taken, near);
    plain.add(next.a);
    plain.add(next.b);
    ASSERT_EQ(list_of(taken), list_of(plain.take(next.threshold))) << "step " << step;
    ASSERT_EQ(list(dense.values()), plain.values()) << "step " << step;
    ASSERT_EQ(near.arrivals, count_common(taken, next.b)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, DenseRegionWidth,
                         testing::Combine(testing::Values(0, 1, 63, 64, 8191, 8192, 20000),
                                          testing::Values(0x1p-5F, 0x1p-12F)));

// Without changes since the last scan the counts are exact.
TEST(DenseRegion, add_take_counts_what_lies_in_the_window_below_the_threshold) {
  const auto device = make_cpu_device();
  DenseRegion dense;
  dense.reset({0, 2000}, {});
  SparseVector v;
  for (Index i = 0; i < 2000; ++i)  // 0.0005 .. 1, in steps of 0.0005
    v.push_back(i, (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(i + 1) / 2000);
  SparseVector taken;
  NearTail near;
  dense.add_take(*device, v, {0.80001F, 0.04F}, taken, near);
  EXPECT_EQ(taken.size(), 400u);
  EXPECT_EQ(near.arrivals, 400u);
  for (const std::uint64_t count : near.below) EXPECT_NEAR(static_cast<double>(count), 8, 1);
  dense.add_take(*device, {}, {0.79F, 0.04F}, taken, near);  // falls into what waited
  EXPECT_EQ(taken.size(), 21u);
  EXPECT_EQ(near.arrivals, 0u);
}

TEST(DenseRegion, scale_keeps_values_and_records_in_step) {
  const auto device = make_cpu_device();
  const Range region{5, 505};
  std::mt19937 random(3);
  const SparseVector v = random_part(random, region, 0.5);
  PlainRegion plain(region);
  plain.add(v);
  DenseRegion dense;
  dense.reset(region, v);
  SparseVector taken;
  NearTail near;
  dense.add_take(*device, {}, {1.5F, 0.01F}, taken, near);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  dense.scale(*device, 4);
  plain.scale(4);
  dense.add_take(*device, {}, {1.5F, 0.01F}, taken, near);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  EXPECT_FALSE(taken.empty());
}

}  // namespace
}  // namespace oktopk::dense_region_test
