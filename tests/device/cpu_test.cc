// SPDX-License-Identifier: Apache-2.0
// DeviceConformance: every verb of every device against a naive loop, bit for bit, at all lengths
// where a vectorised loop has a tail. A new device adds its name to devices().
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "oktopk/device/device.h"
#include "tests/support/sparse.h"

namespace oktopk {
namespace {

std::vector<std::string> devices() { return {"cpu"}; }

std::unique_ptr<Device> make_device(const std::string& name) {
  return name == "cpu" ? make_cpu_device() : nullptr;
}

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 70; ++n) all.push_back(n);
  all.insert(all.end(), {4095, 4096, 4097, 8191, 8193, 12345});
  return all;
}

// Normal values with a tenth of zeros of both signs and a few denormals.
std::vector<float> make_values(std::size_t n, std::uint64_t seed) {
  Random random(seed, n);
  std::vector<float> out(n);
  for (float& x : out) {
    const auto kind = random.below(20);
    x = kind == 0   ? 0.0F
        : kind == 1 ? -0.0F
        : kind == 2 ? std::numeric_limits<float>::denorm_min()
                    : static_cast<float>(random.normal());
  }
  return out;
}

std::vector<std::uint32_t> bits_of(std::span<const float> x) {
  std::vector<std::uint32_t> out;
  for (const float v : x) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

EntryList select_naively(std::span<const float> x, Index base, float threshold) {
  EntryList out;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0 && std::fabs(x[i]) >= threshold)
      out.emplace_back(base + static_cast<Index>(i), x[i]);
  return out;
}

// 0, tiny, in the middle, exactly a value that occurs, above all.
std::vector<float> thresholds(std::span<const float> x) {
  std::vector<float> all = {0.0F, std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::min(), 1.0F, 100.0F};
  if (!x.empty()) all.push_back(std::fabs(x[x.size() / 2]));
  return all;
}

class DeviceConformance : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Device> device_ = make_device(GetParam());
};

TEST_P(DeviceConformance, has_its_name) { EXPECT_EQ(device_->name(), GetParam()); }

TEST_P(DeviceConformance, first_nonfinite_of_finite_values_is_the_size) {
  for (const std::size_t n : lengths()) EXPECT_EQ(device_->first_nonfinite(make_values(n, 1)), n);
  const std::vector<float> extremes = {std::numeric_limits<float>::max(),
                                       -std::numeric_limits<float>::max(), -0.0F};
  EXPECT_EQ(device_->first_nonfinite(extremes), 3u);
}

TEST_P(DeviceConformance, first_nonfinite_finds_the_first_at_any_position) {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::signaling_NaN(), std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity()};
  for (std::size_t at = 0; at < 70; ++at) {
    std::vector<float> x = make_values(70, 2);
    x[at] = bad[at % 5];
    EXPECT_EQ(device_->first_nonfinite(x), at);
    x[69] = bad[0];
    EXPECT_EQ(device_->first_nonfinite(x), at);
  }
  std::vector<float> x = make_values(10000, 2);
  x[9999] = bad[3];
  EXPECT_EQ(device_->first_nonfinite(x), 9999u);
}

TEST_P(DeviceConformance, accumulate_adds_the_scaled_gradient) {
  for (const std::size_t n : lengths())
    for (const float scale : {1.0F, -0.3F, 0.0F}) {
      std::vector<float> acc = make_values(n, 3);
      const std::vector<float> gradient = make_values(n, 4);
      std::vector<float> expected = acc;
      for (std::size_t i = 0; i < n; ++i) expected[i] += scale * gradient[i];
      device_->accumulate(acc, gradient, scale);
      EXPECT_EQ(bits_of(acc), bits_of(expected)) << n << " " << scale;
    }
}

TEST_P(DeviceConformance, accumulate_select_adds_and_selects_from_the_sum) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> start = make_values(n, 5);
    std::vector<float> gradient = make_values(n, 6);
    for (std::size_t i = 0; i < n; i += 7) gradient[i] = -start[i];  // sums that cancel to zero
    std::vector<float> expected = start;
    for (std::size_t i = 0; i < n; ++i) expected[i] += 1.0F * gradient[i];
    for (const float threshold : thresholds(expected)) {
      std::vector<float> acc = start;
      SparseVector out = make_sparse({{5, 5}});  // must be replaced
      device_->accumulate_select(acc, gradient, 1.0F, threshold, out);
      EXPECT_EQ(bits_of(acc), bits_of(expected));
      EXPECT_EQ(list_of(out), select_naively(expected, 0, threshold)) << n << " " << threshold;
    }
  }
}

TEST_P(DeviceConformance, select_at_least_appends_with_the_base) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> x = make_values(n, 7);
    for (const float threshold : thresholds(x)) {
      SparseVector out = make_sparse({{5, 5}});
      device_->select_at_least(x, 4000000000U, threshold, out);
      EntryList expected = select_naively(x, 4000000000U, threshold);
      expected.insert(expected.begin(), {5, 5});
      EXPECT_EQ(list_of(out), expected) << n << " " << threshold;
    }
  }
}

TEST_P(DeviceConformance, select_at_least_zero_takes_no_zeros) {
  const std::vector<float> x = {0.0F, -0.0F, 1e-45F, -0.0F, -1e-45F, 0.0F};
  SparseVector out;
  device_->select_at_least(x, 0, 0.0F, out);
  EXPECT_EQ(list_of(out), (EntryList{{2, 1e-45F}, {4, -1e-45F}}));
}

TEST_P(DeviceConformance, magnitude_histogram_counts_all_but_zeros) {
  for (const std::size_t n : lengths()) {
    const std::vector<float> x = make_values(n, 8);
    MagnitudeHistogram bins{};
    bins[3] = 17;  // added to, not replaced
    MagnitudeHistogram expected = bins;
    for (const float v : x)
      if (v != 0) ++expected[magnitude_bin(v)];
    device_->magnitude_histogram(x, bins);
    EXPECT_EQ(bins, expected) << n;
  }
}

TEST_P(DeviceConformance, sample_magnitudes_takes_every_stride_th_sum) {
  for (const std::size_t n : lengths())
    for (const std::size_t stride : {1U, 3U, 64U})
      for (const std::size_t offset : {std::size_t{0}, stride - 1, stride + 40}) {
        const std::vector<float> acc = make_values(n, 9);
        const std::vector<float> gradient = make_values(n, 10);
        Uninitialised<float> with, without;
        device_->sample_magnitudes(acc, gradient, -0.3F, offset, stride, with);
        device_->sample_magnitudes(acc, {}, -0.3F, offset, stride, without);
        std::vector<float> expected_with, expected_without;
        for (std::size_t i = offset; i < n; i += stride) {
          expected_with.push_back(std::fabs(acc[i] + -0.3F * gradient[i]));
          expected_without.push_back(std::fabs(acc[i]));
        }
        EXPECT_EQ(bits_of(with), bits_of(expected_with));
        EXPECT_EQ(bits_of(without), bits_of(expected_without));
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

TEST_P(DeviceConformance, verbs_at_indices_touch_those_and_no_others) {
  Random random(11);
  for (const std::size_t n : lengths()) {
    const Index base = 1000;
    const std::vector<float> x = make_values(n, 11);
    const auto end = base + static_cast<Index>(n);
    const SparseVector v = n == 0 ? SparseVector{} : random_sparse(random, (n + 2) / 3, base, end);
    std::vector<float> added = x, subtracted = x, cleared = x;
    std::vector<float> expected_added = x, expected_subtracted = x, expected_cleared = x;
    for (const auto& [i, value] : list_of(v)) {
      expected_added[i - base] += value;
      expected_subtracted[i - base] -= value;
      expected_cleared[i - base] = 0;
    }
    device_->add_at(added, base, v);
    device_->subtract_at(subtracted, base, v);
    device_->clear_at(cleared, base, v.idx);
    EXPECT_EQ(bits_of(added), bits_of(expected_added));
    EXPECT_EQ(bits_of(subtracted), bits_of(expected_subtracted));
    EXPECT_EQ(bits_of(cleared), bits_of(expected_cleared));
  }
}

std::string device_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance, testing::ValuesIn(devices()), device_name);

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

TEST(MagnitudeBin, eight_bins_make_an_octave) {
  EXPECT_EQ(magnitude_bin(2.0F), magnitude_bin(1.0F) + 8);
  EXPECT_EQ(magnitude_bin_edge(magnitude_bin(1.0F) + 4), 1.5F);
}

}  // namespace
}  // namespace oktopk
