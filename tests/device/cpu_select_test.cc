// SPDX-License-Identifier: Apache-2.0
// Selecting, alone and fused with the accumulation, against a naive loop.
#include <gtest/gtest.h>

#include "tests/device/conformance.h"

namespace oktopk::cpu_select_test {
namespace {

class DeviceSelection : public DeviceConformance {};

TEST_P(DeviceSelection, select_at_least_appends_with_the_base) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> values = make_values(n, 7);
    for (const float threshold : thresholds(values)) {
      Placed<float> x(values, n % 16);
      SparseVector out = make_sparse({{5, 5}});
      device_->select_at_least(x.span(), 4000000000U, threshold, out);
      BitsList expected = select_naively(values, 4000000000U, threshold);
      expected.insert(expected.begin(), {5, std::bit_cast<std::uint32_t>(5.0F)});
      ASSERT_EQ(bits_list_of(out), expected) << n << " " << threshold;
    }
  }
}

TEST_P(DeviceSelection, select_at_least_works_at_any_place) {
  const std::vector<float> values = make_values(1500, 8);
  const BitsList expected = select_naively(values, 0, 0.5F);
  for (std::size_t offset = 0; offset < 16; ++offset) {
    Placed<float> x(values, offset);
    SparseVector out;
    device_->select_at_least(x.span(), 0, 0.5F, out);
    ASSERT_EQ(bits_list_of(out), expected) << offset;
  }
}

TEST_P(DeviceSelection, select_at_least_zero_takes_no_zeros) {
  const std::vector<float> x = {0.0F, -0.0F, 1e-45F, -0.0F, -1e-45F, 0.0F};
  SparseVector out;
  device_->select_at_least(x, 0, 0.0F, out);
  EXPECT_EQ(list_of(out), (EntryList{{2, 1e-45F}, {4, -1e-45F}}));
}

TEST_P(DeviceSelection, select_takes_what_is_not_finite_at_any_threshold) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const std::size_t n : {5U, 40U, 1024U, 1029U, 140000U})
    for (std::size_t trial = 0; trial < 40; ++trial) {
      std::vector<float> x = make_values(n, 9);
      const std::size_t at = trial * 7919 % n;
      x[at] = bad[trial % 4];
      SparseVector out;
      device_->select_at_least(x, 0, std::numeric_limits<float>::max(), out);
      ASSERT_EQ(bits_list_of(out), (BitsList{{static_cast<Index>(at), std::bit_cast<std::uint32_t>(x[at])}}));
      std::vector<float> acc(n, 0.0F);
      device_->accumulate_select({acc, x}, std::numeric_limits<float>::max(), out);
      ASSERT_EQ(out.size(), 1u);
      EXPECT_EQ(out.idx[0], at);
      EXPECT_FALSE(std::isfinite(out.val[0]));
    }
}

// Every density between nothing and everything, in both tight and roomy output.
TEST_P(DeviceSelection, select_fills_the_output_at_every_density) {
  for (const std::size_t n : {1024U, 5000U, 150000U}) {
    SparseVector kept;
    for (const std::uint64_t out_of : {1U, 2U, 5U, 100U, 100000U}) {
      Random random(10, out_of);
      std::vector<float> x(n);
      for (float& v : x) v = random.below(out_of) == 0 ? 2.0F : -1.0F;
      SparseVector fresh;
      kept.clear();
      device_->select_at_least(x, 7, 1.5F, fresh);
      device_->select_at_least(x, 7, 1.5F, kept);
      const BitsList expected = select_naively(x, 7, 1.5F);
      ASSERT_EQ(bits_list_of(fresh), expected);
      ASSERT_EQ(bits_list_of(kept), expected);
    }
  }
}

TEST_P(DeviceSelection, select_again_does_not_allocate_and_never_n_for_a_few) {
  const std::size_t n = 400000;
  std::vector<float> x = make_values(n, 11);
  SparseVector out;
  device_->accumulate_select({.acc = x}, 3.0F, out);
  EXPECT_LT(out.idx.capacity(), n / 4);
  const Index* before = out.idx.data();
  for (int step = 0; step < 3; ++step) device_->accumulate_select({.acc = x}, 3.0F, out);
  EXPECT_EQ(out.idx.data(), before);
}

template <class T>
void expect_accumulates_and_selects(const Device& device) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> start = make_values(n, 12);
    const std::vector<T> gradient = make_gradient<T>(n, 13);
    for (const std::vector<Index>& cleared : cleared_lists(n)) {
      const std::vector<float> expected = accumulate_naively(start, gradient, -0.3F, cleared);
      for (const float threshold : thresholds(expected)) {
        Placed<float> acc(start, n % 16);
        Placed<T> placed(gradient, n % 13);
        SparseVector out = make_sparse({{5, 5}});  // must be replaced
        device.accumulate_select({acc.span(), std::span<const T>(placed.span()), -0.3F, cleared}, threshold, out);
        ASSERT_EQ(bits_of(acc.span()), bits_of(expected)) << n << " " << cleared.size();
        ASSERT_EQ(bits_list_of(out), select_naively(expected, 0, threshold))
            << n << " " << threshold << " " << cleared.size();
      }
    }
  }
}

TEST_P(DeviceSelection, accumulate_select_selects_from_the_sum) { expect_accumulates_and_selects<float>(*device_); }
TEST_P(DeviceSelection, accumulate_select_widens_bf16) { expect_accumulates_and_selects<Bf16>(*device_); }
TEST_P(DeviceSelection, accumulate_select_widens_fp16) { expect_accumulates_and_selects<Fp16>(*device_); }

TEST_P(DeviceSelection, accumulate_select_takes_no_sums_that_cancel) {
  std::vector<float> acc = make_values(3000, 14);
  std::vector<float> gradient = acc;
  for (float& g : gradient) g = -g;
  SparseVector out;
  device_->accumulate_select({acc, gradient}, 0.0F, out);
  EXPECT_TRUE(out.empty());
}

TEST_P(DeviceSelection, accumulate_select_of_an_empty_gradient_clears_and_scans) {
  for (const std::size_t n : lengths())
    for (const std::vector<Index>& cleared : cleared_lists(n)) {
      std::vector<float> expected = make_values(n, 15);
      Placed<float> acc(expected, n % 16);
      for (const Index i : cleared) expected[i] = 0;
      SparseVector out;
      device_->accumulate_select({.acc = acc.span(), .cleared = cleared}, 0.7F, out);
      ASSERT_EQ(bits_of(acc.span()), bits_of(expected));
      ASSERT_EQ(bits_list_of(out), select_naively(expected, 0, 0.7F)) << n;
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSelection, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace oktopk::cpu_select_test
