// SPDX-License-Identifier: Apache-2.0
// DeviceConformance of memory, of the verbs that go over all elements, and of those at scattered places. Selecting:
// cpu_select_test.cc; samples and histograms: cpu_sample_test.cc.
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/device/conformance.h"

namespace oktopk::cpu_test {
namespace {

TEST_P(DeviceConformance, has_its_name) { EXPECT_EQ(GetParam().name.find(device_->name()), 0u); }

TEST_P(DeviceConformance, allocated_memory_is_zero_and_can_be_used) {
  for (const std::size_t n : {0U, 1U, 1000U, 3000001U}) {
    const DeviceFloats memory = device_->allocate(n);
    const std::span<float> x(memory.get(), n);
    SparseVector out;
    device_->select_at_least(x, 0, 0.0F, out);
    EXPECT_TRUE(out.empty()) << n;
    if (n == 0) continue;
    device_->add_at(x, 0, make_sparse({{static_cast<Index>(n - 1), 2}}));
    device_->select_at_least(x, 0, 0.0F, out);
    EXPECT_EQ(list_of(out), (EntryList{{static_cast<Index>(n - 1), 2}})) << n;
  }
}

template <class T>
T not_finite(std::size_t which);
template <>
float not_finite(std::size_t which) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::signaling_NaN(), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  return bad[which % 5];
}
template <>
Bf16 not_finite(std::size_t which) {
  const std::uint16_t bad[] = {0x7f80, 0xff80, 0x7f81, 0xffff};
  return {bad[which % 4]};
}
template <>
Fp16 not_finite(std::size_t which) {
  const std::uint16_t bad[] = {0x7c00, 0xfc00, 0x7c01, 0xffff};
  return {bad[which % 4]};
}

template <class T>
void expect_finds_nonfinite(const Device& device) {
  for (const std::size_t n : lengths()) {
    Placed<T> x(make_gradient<T>(n, 1), n % 16);
    EXPECT_EQ(device.first_nonfinite(Gradient(std::span<const T>(x.span()))), n);
  }
  for (const std::size_t n : {70U, 1100U, 200001U})
    for (std::size_t trial = 0; trial < (n > kManyElements ? 20U : 200U); ++trial) {
      const std::size_t at = n <= 200 ? trial % n : trial * 5483 % n;
      std::vector<T> x(n);
      x[at] = not_finite<T>(trial);
      EXPECT_EQ(device.first_nonfinite(x), at);
      x[n - 1] = not_finite<T>(trial + 1);
      EXPECT_EQ(device.first_nonfinite(x), at);
    }
}

TEST_P(DeviceConformance, first_nonfinite_finds_the_first_of_any_type) {
  expect_finds_nonfinite<float>(*device_);
  expect_finds_nonfinite<Bf16>(*device_);
  expect_finds_nonfinite<Fp16>(*device_);
  const std::vector<float> extremes = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), -0.0F};
  EXPECT_EQ(device_->first_nonfinite(extremes), 3u);
}

template <class T>
void expect_accumulates(const Device& device) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> start = make_values(n, 3);
    const std::vector<T> gradient = make_gradient<T>(n, 4);
    for (const float scale : {1.0F, -0.3F, 0.0F})
      for (const std::vector<Index>& cleared : cleared_lists(n)) {
        Placed<float> acc(start, n % 16);
        Placed<T> placed(gradient, n % 13);
        device.accumulate({acc.span(), std::span<const T>(placed.span()), scale, cleared});
        ASSERT_EQ(bits_of(acc.span()), bits_of(accumulate_naively(start, gradient, scale, cleared)))
            << n << " " << scale << " " << cleared.size();
      }
  }
}

TEST_P(DeviceConformance, accumulate_clears_and_adds_the_scaled_gradient) { expect_accumulates<float>(*device_); }
TEST_P(DeviceConformance, accumulate_widens_bf16) { expect_accumulates<Bf16>(*device_); }
TEST_P(DeviceConformance, accumulate_widens_fp16) { expect_accumulates<Fp16>(*device_); }

TEST_P(DeviceConformance, accumulate_of_an_empty_gradient_only_clears) {
  std::vector<float> acc = make_values(3000, 5);
  std::vector<float> expected = acc;
  const std::vector<Index> cleared = {0, 7, 1023, 1024, 2999};
  for (const Index i : cleared) expected[i] = 0;
  device_->accumulate({.acc = acc, .scale = 2, .cleared = cleared});
  EXPECT_EQ(bits_of(acc), bits_of(expected));
}

TEST_P(DeviceConformance, multiply_scales_every_element) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> start = make_values(n, 6);
    Placed<float> x(start, n % 16);
    device_->multiply(x.span(), -0.3F);
    std::vector<float> expected = start;
    for (float& v : expected) v *= -0.3F;
    ASSERT_EQ(bits_of(x.span()), bits_of(expected)) << n;
  }
}

TEST_P(DeviceConformance, moments_of_known_values) {
  EXPECT_EQ(device_->moments({}).mean, 0);
  EXPECT_EQ(device_->moments({}).standard_deviation, 0);
  const std::vector<float> x = {1, 2, 3, 4, 10};
  EXPECT_DOUBLE_EQ(device_->moments(x).mean, 4);
  EXPECT_DOUBLE_EQ(device_->moments(x).standard_deviation, std::sqrt(10.0));
  const std::vector<float> equal(1000, 0.1F);
  EXPECT_NEAR(device_->moments(equal).mean, 0.1, 1e-6);
  EXPECT_NEAR(device_->moments(equal).standard_deviation, 0, 1e-6);
}

// Sums are rounded, so that equal bits mean an equal order.
TEST_P(DeviceConformance, moments_have_the_bits_of_one_thread_without_vectors) {
  for (const std::size_t n : lengths()) {
    if (n == 0) continue;
    std::vector<float> values = make_values(n, 7);
    for (std::size_t i = 0; i < n; i += 3) values[i] *= 1e12F;
    Placed<float> x(values, n % 16);
    const Moments moments = device_->moments(x.span());
    const SimdLimit scalar(SimdLevel::scalar);
    const Moments expected = make_cpu_device()->moments(values);
    ASSERT_EQ(moments.mean, expected.mean) << n;
    ASSERT_EQ(moments.standard_deviation, expected.standard_deviation) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance, testing::ValuesIn(devices()), device_name);

TEST(CpuDevice, make_with_threads_out_of_range_is_refused) {
  for (const int threads : {0, -1, 257}) {
    try {
      make_cpu_device({.threads = threads});
      FAIL() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(threads)), std::string::npos);
    }
  }
}

TEST(MagnitudeBin, holds_its_magnitudes_between_its_edges) {
  Random random(12);
  for (int trial = 0; trial < 100000; ++trial) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (!std::isfinite(x)) continue;
    const std::size_t bin = magnitude_bin(x);
    ASSERT_LT(bin + 1, kMagnitudeBins);
    ASSERT_LE(magnitude_bin_edge(bin), std::fabs(x)) << x;
    ASSERT_LT(std::fabs(x), magnitude_bin_edge(bin + 1)) << x;
  }
}

TEST(MagnitudeBin, edge_belongs_to_its_bin_and_the_value_below_to_the_one_before) {
  for (std::size_t bin = 1; bin < magnitude_bin(std::numeric_limits<float>::max()); ++bin) {
    const float edge = magnitude_bin_edge(bin);
    EXPECT_EQ(magnitude_bin(edge), bin);
    EXPECT_EQ(magnitude_bin(-edge), bin);
    EXPECT_EQ(magnitude_bin(std::nextafter(edge, 0.0F)), bin - 1);
  }
}

TEST(MagnitudeBin, thirty_two_bins_make_an_octave) {
  EXPECT_EQ(magnitude_bin(2.0F), magnitude_bin(1.0F) + 32);
  EXPECT_EQ(magnitude_bin_edge(magnitude_bin(1.0F) + 16), 1.5F);
}

}  // namespace
}  // namespace oktopk::cpu_test
