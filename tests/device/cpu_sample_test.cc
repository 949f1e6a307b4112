// SPDX-License-Identifier: Apache-2.0
// Histograms, samples and verbs at scattered places, against naive loops.

#include <gtest/gtest.h>

#include "tests/device/conformance.h"

namespace oktopk::cpu_sample_test {
namespace {

class DeviceSamples : public DeviceConformance {};

TEST_P(DeviceSamples, magnitude_histogram_counts_all_but_zeros) {
  for (const std::size_t n : lengths()) {
    std::vector<float> x = make_values(n, 8);
    if (n > 2) x[n / 2] = std::numeric_limits<float>::quiet_NaN();
    MagnitudeHistogram bins{};
    bins[3] = 17;  // added to, not replaced
    MagnitudeHistogram expected = bins;
    for (const float v : x)
      if (v != 0) ++expected[magnitude_bin(v)];
    device_->magnitude_histogram(x, bins);
    ASSERT_EQ(bins, expected) << n;
  }
}

template <class T>
void expect_samples(const Device& device, std::size_t n, std::size_t offset, std::size_t stride) {
  const std::vector<float> acc = make_values(n, 9);
  const std::vector<T> gradient = make_gradient<T>(n, 10);
  for (const std::vector<Index>& cleared : cleared_lists(n)) {
    std::vector<float> start = acc;
    Uninitialised<std::uint32_t> with = {1, 2, 3};
    Uninitialised<std::uint32_t> without;
    device.sample_magnitudes({start, gradient, -0.3F, cleared}, offset, stride, with);
    device.sample_magnitudes({.acc = start, .cleared = cleared}, offset, stride, without);
    ASSERT_EQ(bits_of(start), bits_of(acc));
    const auto sum = accumulate_naively(acc, gradient, -0.3F, cleared);
    const auto kept = accumulate_naively(acc, std::vector<T>{}, 1.0F, cleared);
    Uninitialised<std::uint32_t> expected_with, expected_without;
    for (std::size_t first = offset; first < n; first += stride)
      for (std::size_t i = first; i < std::min(n, first + 4); ++i) {
        expected_with.push_back(std::bit_cast<std::uint32_t>(std::fabs(sum[i])));
        expected_without.push_back(std::bit_cast<std::uint32_t>(std::fabs(kept[i])));
      }
    ASSERT_EQ(with, expected_with) << n << " " << offset << " " << stride;
    ASSERT_EQ(without, expected_without) << n << " " << offset << " " << stride;
  }
}

TEST_P(DeviceSamples, sample_magnitudes_takes_four_neighbours_of_the_sum_at_every_stride) {
  for (const std::size_t n : {0U, 1U, 2U, 3U, 4U, 5U, 63U, 64U, 65U, 300U, 5000U})
    for (const std::size_t stride : {4U, 5U, 64U, 997U})
      for (const std::size_t offset : {std::size_t{0}, stride - 1, stride + 40}) {
        expect_samples<float>(*device_, n, offset, stride);
        expect_samples<Bf16>(*device_, n, offset, stride);
        expect_samples<Fp16>(*device_, n, offset, stride);
      }
}

TEST_P(DeviceSamples, verbs_at_indices_touch_those_and_no_others) {
  Random random(11);
  for (const std::size_t n : lengths()) {
    const Index base = 1000;
    const std::vector<float> x = make_values(n, 11);
    const auto end = base + static_cast<Index>(n);
    const SparseVector v = n == 0 ? SparseVector{} : random_sparse(random, (n + 2) / 3, base, end);
    std::vector<float> added = x, cleared = x;
    std::vector<float> expected_added = x, expected_cleared = x;
    for (const auto& [i, value] : list_of(v)) {
      expected_added[i - base] += value;
      expected_cleared[i - base] = 0;
    }
    device_->add_at(added, base, v);
    device_->clear_at(cleared, base, v.idx);
    ASSERT_EQ(bits_of(added), bits_of(expected_added));
    ASSERT_EQ(bits_of(cleared), bits_of(expected_cleared));
  }
}

TEST_P(DeviceSamples, add_take_takes_out_large_sums_and_reports_others) {
  Random random(12);
  for (const std::size_t n : lengths())
    for (const bool adds : {true, false}) {
      const Index base = 1000;
      std::vector<float> x = make_values(n, 12);
      const SparseVector v =
          n == 0 ? SparseVector{} : random_sparse(random, (n + 2) / 3, base, base + static_cast<Index>(n));
      const TakeBounds bounds{.take = magnitude_bits(1.0F), .report = magnitude_bits(0.25F)};
      std::vector<float> expected = x;
      std::vector<float> again = x;
      std::vector<float> expected_before;
      BitsList expected_taken, expected_reported;
      for (const auto& [i, value] : list_of(v)) {
        float& place = expected[i - base];
        expected_before.push_back(place);
        if (adds) place += value;
        const auto bits = std::bit_cast<std::uint32_t>(place);
        if (std::fabs(place) >= 0.25F)
          (std::fabs(place) >= 1 ? expected_taken : expected_reported).emplace_back(i, bits);
        if (std::fabs(place) >= 1) place = 0;
      }
      SparseVector taken = make_sparse({{1, 1}}), reported = taken;
      device_->add_take(x, base, adds ? v.view() : CooView{v.idx, {}}, bounds, taken, reported);
      ASSERT_EQ(bits_of(x), bits_of(expected));
      ASSERT_EQ(bits_list_of(taken), expected_taken);
      ASSERT_EQ(bits_list_of(reported), expected_reported);
      std::vector<float> before(v.size(), -1.0F);
      device_->add_take(again, base, adds ? v.view() : CooView{v.idx, {}}, bounds, taken, reported, before.data());
      ASSERT_EQ(bits_of(before), bits_of(expected_before));
      ASSERT_EQ(bits_of(again), bits_of(expected));
      ASSERT_EQ(bits_list_of(taken), expected_taken);
    }
}

TEST_P(DeviceSamples, read_and_write_copy_all_elements) {
  for (const std::size_t n : {0U, 1U, 1000U}) {
    const DeviceFloats memory = device_->allocate(n);
    const std::span<float> x(memory.get(), n);
    const std::vector<float> values = make_values(n, 13);
    std::vector<float> back(n, 1.0F);
    device_->write(x, values);
    device_->read(x, back.data());
    EXPECT_EQ(bits_of(back), bits_of(values));
    if (n > 0) {
      EXPECT_EQ(value_at(*device_, x, n / 2), values[n / 2]);
    }
    device_->write(x, {});
    device_->read(x, back.data());
    EXPECT_EQ(back, std::vector<float>(n, 0.0F));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSamples, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace oktopk::cpu_sample_test
