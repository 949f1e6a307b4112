// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/dense_region.h"

#include <gtest/gtest.h>

#include "tests/device/plain_region.h"
#include "tests/support/sparse.h"

namespace oktopk::dense_region_test {
namespace {

class DenseRegionWidth : public testing::TestWithParam<Index> {};

TEST_P(DenseRegionWidth, add_take_equals_a_full_scan_over_many_steps) {
  const Range region{1000, 1000 + GetParam()};
  const auto device = make_cpu_device();
  std::mt19937 random(GetParam());
  DenseRegion dense;
  dense.reset(region, {});
  PlainRegion plain(region);
  Arrivals next;
  for (int step = 0; step < 60; ++step) {
    next.draw(random, region, 0.05, step);
    dense.add(next.a);
    SparseVector taken;
    dense.add_take(*device, next.b, next.threshold, taken);
    plain.add(next.a);
    plain.add(next.b);
    ASSERT_EQ(list_of(taken), list_of(plain.take(next.threshold))) << "step " << step;
    ASSERT_EQ(list(dense.values()), plain.values()) << "step " << step;
    ASSERT_EQ(dense.bins(), plain.bins()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, DenseRegionWidth, testing::Values(0, 1, 63, 64, 8191, 8192, 20000),
                         testing::PrintToStringParamName());

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
  dense.add_take(*device, {}, 1.5F, taken);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  dense.scale(*device, 4);
  plain.scale(4);
  EXPECT_EQ(dense.bins(), plain.bins());
  dense.add_take(*device, {}, 1.5F, taken);
  EXPECT_EQ(list_of(taken), list_of(plain.take(1.5F)));
  EXPECT_FALSE(taken.empty());
}

}  // namespace
}  // namespace oktopk::dense_region_test
