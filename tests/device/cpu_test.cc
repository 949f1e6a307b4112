// SPDX-License-Identifier: Apache-2.0
// DeviceConformance: every verb of every device, against naive loops.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/device/conformance.h"

namespace oktopk::cpu_test {
namespace {

// ---- Memory ----

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

TEST_P(DeviceConformance, read_and_write_copy_all_elements) {
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

// ---- All elements ----

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
  for (const std::size_t n : lengths(device)) {
    const OnDevice<T> x(device, make_gradient<T>(n, 1), n % 16);
    EXPECT_EQ(device.first_nonfinite(x.gradient()), n);
  }
  for (const std::size_t n : {70U, 1100U, 200001U}) {
    OnDevice<T> placed(device, std::vector<T>(n));
    for (std::size_t trial = 0; trial < (n > kManyElements ? 20U : 200U); ++trial) {
      const std::size_t at = n <= 200 ? trial % n : trial * 5483 % n;
      std::vector<T> x(n);
      x[at] = not_finite<T>(trial);
      placed.write(x);
      EXPECT_EQ(device.first_nonfinite(placed.gradient()), at);
      x[n - 1] = not_finite<T>(trial + 1);
      placed.write(x);
      EXPECT_EQ(device.first_nonfinite(placed.gradient()), at);
    }
  }
}

TEST_P(DeviceConformance, first_nonfinite_finds_the_first_of_any_type) {
  expect_finds_nonfinite<float>(*device_);
  expect_finds_nonfinite<Bf16>(*device_);
  expect_finds_nonfinite<Fp16>(*device_);
  const std::vector<float> extremes = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), -0.0F};
  EXPECT_EQ(device_->first_nonfinite(put(extremes).gradient()), 3u);
}

template <class T>
void expect_accumulates(const Device& device) {
  for (const std::size_t n : lengths(device)) {
    const std::vector<float> start = make_values(n, 3);
    const std::vector<T> gradient = make_gradient<T>(n, 4);
    for (const float scale : {1.0F, -0.3F, 0.0F})
      for (const std::vector<Index>& cleared : cleared_lists(n)) {
        const OnDevice<float> acc(device, start, n % 16);
        const OnDevice<T> placed(device, gradient, n % 13);
        device.accumulate({acc.span(), placed.gradient(), scale, cleared});
        ASSERT_EQ(bits_of(acc.read()), bits_of(accumulate_naively(start, gradient, scale, cleared)))
            << n << " " << scale << " " << cleared.size();
      }
  }
}

TEST_P(DeviceConformance, accumulate_clears_and_adds_the_scaled_gradient) { expect_accumulates<float>(*device_); }
TEST_P(DeviceConformance, accumulate_widens_bf16) { expect_accumulates<Bf16>(*device_); }
TEST_P(DeviceConformance, accumulate_widens_fp16) { expect_accumulates<Fp16>(*device_); }

TEST_P(DeviceConformance, accumulate_of_an_empty_gradient_only_clears) {
  std::vector<float> expected = make_values(3000, 5);
  const auto acc = put(expected);
  const std::vector<Index> cleared = {0, 7, 1023, 1024, 2999};
  for (const Index i : cleared) expected[i] = 0;
  device_->accumulate({.acc = acc.span(), .scale = 2, .cleared = cleared});
  EXPECT_EQ(bits_of(acc.read()), bits_of(expected));
}

TEST_P(DeviceConformance, accumulate_takes_vectors_of_the_host_beside_its_own) {
  const std::vector<float> start = make_values(3000, 5);
  const std::vector<Bf16> gradient = make_gradient<Bf16>(3000, 6);
  const auto expected = bits_of(accumulate_naively(start, gradient, 2, {}));
  const auto acc = put(start);
  device_->accumulate({acc.span(), gradient, 2});
  EXPECT_EQ(bits_of(acc.read()), expected);
  std::vector<float> host = start;
  device_->accumulate({host, put(gradient).gradient(), 2});
  EXPECT_EQ(bits_of(host), expected);
}

TEST_P(DeviceConformance, multiply_scales_every_element) {
  for (const std::size_t n : lengths(*device_)) {
    std::vector<float> expected = make_values(n, 6);
    const auto x = put(expected, n % 16);
    device_->multiply(x.span(), -0.3F);
    for (float& v : expected) v *= -0.3F;
    ASSERT_EQ(bits_of(x.read()), bits_of(expected)) << n;
  }
}

TEST_P(DeviceConformance, moments_of_known_values) {
  EXPECT_EQ(device_->moments({}).mean, 0);
  EXPECT_EQ(device_->moments({}).standard_deviation, 0);
  const auto x = put(std::vector<float>{1, 2, 3, 4, 10});
  EXPECT_DOUBLE_EQ(device_->moments(x.span()).mean, 4);
  EXPECT_DOUBLE_EQ(device_->moments(x.span()).standard_deviation, std::sqrt(10.0));
  const auto equal = put(std::vector<float>(1000, 0.1F));
  EXPECT_NEAR(device_->moments(equal.span()).mean, 0.1, 1e-6);
  EXPECT_NEAR(device_->moments(equal.span()).standard_deviation, 0, 1e-6);
}

// Sums are rounded, so that equal bits mean an equal order.
TEST_P(DeviceConformance, moments_have_the_bits_of_one_thread_without_vectors) {
  for (const std::size_t n : lengths(*device_)) {
    if (n == 0) continue;
    std::vector<float> values = make_values(n, 7);
    for (std::size_t i = 0; i < n; i += 3) values[i] *= 1e12F;
    const auto x = put(values, n % 16);
    const Moments moments = device_->moments(x.span());
    const SimdLimit scalar(SimdLevel::scalar);
    const Moments expected = make_cpu_device()->moments(values);
    ASSERT_EQ(moments.mean, expected.mean) << n;
    ASSERT_EQ(moments.standard_deviation, expected.standard_deviation) << n;
  }
}

// ---- Samples, and scattered places ----

TEST_P(DeviceConformance, magnitude_histogram_counts_all_but_zeros) {
  for (const std::size_t n : lengths(*device_)) {
    std::vector<float> x = make_values(n, 8);
    if (n > 2) x[n / 2] = std::numeric_limits<float>::quiet_NaN();
    MagnitudeHistogram bins{};
    bins[3] = 17;  // added to, not replaced
    MagnitudeHistogram expected = bins;
    for (const float v : x)
      if (v != 0) ++expected[magnitude_bin(v)];
    device_->magnitude_histogram(put(x).span(), bins);
    ASSERT_EQ(bins, expected) << n;
  }
}

template <class T>
void expect_samples(const Device& device, std::size_t n, std::size_t offset, std::size_t stride) {
  const std::vector<float> acc = make_values(n, 9);
  const std::vector<T> gradient = make_gradient<T>(n, 10);
  const OnDevice<float> start(device, acc);
  const OnDevice<T> placed(device, gradient);
  for (const std::vector<Index>& cleared : cleared_lists(n)) {
    Uninitialised<std::uint32_t> with = {1, 2, 3};
    Uninitialised<std::uint32_t> without;
    device.sample_magnitudes({start.span(), placed.gradient(), -0.3F, cleared}, offset, stride, with);
    device.sample_magnitudes({.acc = start.span(), .cleared = cleared}, offset, stride, without);
    ASSERT_EQ(bits_of(start.read()), bits_of(acc));
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

TEST_P(DeviceConformance, sample_magnitudes_takes_four_neighbours_of_the_sum_at_every_stride) {
  for (const std::size_t n : {0U, 1U, 2U, 3U, 4U, 5U, 63U, 64U, 65U, 300U, 5000U})
    for (const std::size_t stride : {4U, 5U, 64U, 997U})
      for (const std::size_t offset : {std::size_t{0}, stride - 1, stride + 40}) {
        expect_samples<float>(*device_, n, offset, stride);
        expect_samples<Bf16>(*device_, n, offset, stride);
        expect_samples<Fp16>(*device_, n, offset, stride);
      }
}

TEST_P(DeviceConformance, verbs_at_indices_touch_those_and_no_others) {
  Random random(11);
  for (const std::size_t n : lengths(*device_)) {
    const Index base = 1000;
    const std::vector<float> x = make_values(n, 11);
    const auto end = base + static_cast<Index>(n);
    const SparseVector v = n == 0 ? SparseVector{} : random_sparse(random, (n + 2) / 3, base, end);
    const auto added = put(x), cleared = put(x);
    std::vector<float> expected_added = x, expected_cleared = x;
    for (const auto& [i, value] : list_of(v)) {
      expected_added[i - base] += value;
      expected_cleared[i - base] = 0;
    }
    device_->add_at(added.span(), base, v);
    device_->clear_at(cleared.span(), base, v.idx);
    ASSERT_EQ(bits_of(added.read()), bits_of(expected_added));
    ASSERT_EQ(bits_of(cleared.read()), bits_of(expected_cleared));
  }
}

TEST_P(DeviceConformance, add_take_takes_out_large_sums_and_reports_others) {
  Random random(12);
  for (const std::size_t n : lengths(*device_))
    for (const bool adds : {true, false}) {
      const Index base = 1000;
      std::vector<float> expected = make_values(n, 12);
      const auto x = put(expected), again = put(expected);
      const SparseVector v =
          n == 0 ? SparseVector{} : random_sparse(random, (n + 2) / 3, base, base + static_cast<Index>(n));
      const TakeBounds bounds{.take = magnitude_bits(1.0F), .report = magnitude_bits(0.25F)};
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
      device_->add_take(x.span(), base, adds ? v.view() : CooView{v.idx, {}}, bounds, taken, reported);
      ASSERT_EQ(bits_of(x.read()), bits_of(expected));
      ASSERT_EQ(bits_list_of(taken), expected_taken);
      ASSERT_EQ(bits_list_of(reported), expected_reported);
      std::vector<float> before(v.size(), -1.0F);
      device_->add_take(again.span(), base, adds ? v.view() : CooView{v.idx, {}}, bounds, taken, reported,
                        before.data());
      ASSERT_EQ(bits_of(before), bits_of(expected_before));
      ASSERT_EQ(bits_of(again.read()), bits_of(expected));
      ASSERT_EQ(bits_list_of(taken), expected_taken);
    }
}

// ---- Selection, alone and fused with the accumulation ----

TEST_P(DeviceConformance, select_at_least_appends_with_the_base) {
  for (const std::size_t n : lengths(*device_)) {
    const std::vector<float> values = make_values(n, 7);
    for (const float threshold : thresholds(values)) {
      const auto x = put(values, n % 16);
      SparseVector out = make_sparse({{5, 5}});
      device_->select_at_least(x.span(), 4000000000U, threshold, out);
      BitsList expected = select_naively(values, 4000000000U, threshold);
      expected.insert(expected.begin(), {5, std::bit_cast<std::uint32_t>(5.0F)});
      ASSERT_EQ(bits_list_of(out), expected) << n << " " << threshold;
    }
  }
}

TEST_P(DeviceConformance, select_takes_what_is_not_finite_at_any_threshold) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const std::size_t n : {5U, 40U, 1024U, 1029U, 140000U})
    for (std::size_t trial = 0; trial < 40; ++trial) {
      std::vector<float> x = make_values(n, 9);
      const std::size_t at = trial * 7919 % n;
      x[at] = bad[trial % 4];
      const auto placed = put(x), acc = put(std::vector<float>(n, 0.0F));
      SparseVector out;
      device_->select_at_least(placed.span(), 0, std::numeric_limits<float>::max(), out);
      ASSERT_EQ(bits_list_of(out), (BitsList{{static_cast<Index>(at), std::bit_cast<std::uint32_t>(x[at])}}));
      device_->accumulate_select({acc.span(), placed.gradient()}, std::numeric_limits<float>::max(), out);
      ASSERT_EQ(out.size(), 1u);
      EXPECT_EQ(out.idx[0], at);
      EXPECT_FALSE(std::isfinite(out.val[0]));
    }
}

// Every density between nothing and everything, in both tight and roomy output.
TEST_P(DeviceConformance, select_fills_the_output_at_every_density) {
  for (const std::size_t n : {1024U, 5000U, 150000U}) {
    SparseVector kept;
    for (const std::uint64_t out_of : {1U, 2U, 5U, 100U, 100000U}) {
      Random random(10, out_of);
      std::vector<float> x(n);
      for (float& v : x) v = random.below(out_of) == 0 ? 2.0F : -1.0F;
      const auto placed = put(x);
      SparseVector fresh;
      kept.clear();
      device_->select_at_least(placed.span(), 7, 1.5F, fresh);
      device_->select_at_least(placed.span(), 7, 1.5F, kept);
      const BitsList expected = select_naively(x, 7, 1.5F);
      ASSERT_EQ(bits_list_of(fresh), expected);
      ASSERT_EQ(bits_list_of(kept), expected);
    }
  }
}

TEST_P(DeviceConformance, select_again_does_not_allocate_and_never_n_for_a_few) {
  const std::size_t n = 400000;
  const auto x = put(make_values(n, 11));
  SparseVector out;
  device_->accumulate_select({.acc = x.span()}, 3.0F, out);
  EXPECT_LT(out.idx.capacity(), n / 4);
  const Index* before = out.idx.data();
  for (int step = 0; step < 3; ++step) device_->accumulate_select({.acc = x.span()}, 3.0F, out);
  EXPECT_EQ(out.idx.data(), before);
}

template <class T>
void expect_accumulates_and_selects(const Device& device) {
  for (const std::size_t n : lengths(device)) {
    const std::vector<float> start = make_values(n, 12);
    const std::vector<T> gradient = make_gradient<T>(n, 13);
    for (const std::vector<Index>& cleared : cleared_lists(n)) {
      const std::vector<float> expected = accumulate_naively(start, gradient, -0.3F, cleared);
      for (const float threshold : thresholds(expected)) {
        const OnDevice<float> acc(device, start, n % 16);
        const OnDevice<T> placed(device, gradient, n % 13);
        SparseVector out = make_sparse({{5, 5}});  // must be replaced
        device.accumulate_select({acc.span(), placed.gradient(), -0.3F, cleared}, threshold, out);
        ASSERT_EQ(bits_of(acc.read()), bits_of(expected)) << n << " " << cleared.size();
        ASSERT_EQ(bits_list_of(out), select_naively(expected, 0, threshold))
            << n << " " << threshold << " " << cleared.size();
      }
    }
  }
}

TEST_P(DeviceConformance, accumulate_select_selects_from_the_sum) { expect_accumulates_and_selects<float>(*device_); }
TEST_P(DeviceConformance, accumulate_select_widens_bf16) { expect_accumulates_and_selects<Bf16>(*device_); }
TEST_P(DeviceConformance, accumulate_select_widens_fp16) { expect_accumulates_and_selects<Fp16>(*device_); }

TEST_P(DeviceConformance, accumulate_select_takes_no_sums_that_cancel) {
  std::vector<float> values = make_values(3000, 14);
  const auto acc = put(values);
  for (float& g : values) g = -g;
  SparseVector out;
  device_->accumulate_select({acc.span(), put(values).gradient()}, 0.0F, out);
  EXPECT_TRUE(out.empty());
}

TEST_P(DeviceConformance, accumulate_select_of_an_empty_gradient_clears_and_scans) {
  for (const std::size_t n : lengths(*device_))
    for (const std::vector<Index>& cleared : cleared_lists(n)) {
      std::vector<float> expected = make_values(n, 15);
      const auto acc = put(expected, n % 16);
      for (const Index i : cleared) expected[i] = 0;
      SparseVector out;
      device_->accumulate_select({.acc = acc.span(), .cleared = cleared}, 0.7F, out);
      ASSERT_EQ(bits_of(acc.read()), bits_of(expected));
      ASSERT_EQ(bits_list_of(out), select_naively(expected, 0, 0.7F)) << n;
    }
}

// Magnitudes are rounded to halves, so that many are equal: the smaller indices stay.
TEST_P(DeviceConformance, accumulate_select_keeps_the_largest_of_equal_ones_the_first) {
  for (const std::size_t n : {1U, 300U, 4097U, 50001U}) {
    std::vector<float> x = make_values(n, 16);
    for (float& v : x) v = std::round(2 * v) / 2;
    const auto acc = put(x), zeros = put(std::vector<float>(n, 0.0F));
    const BitsList all = select_naively(x, 0, 0.7F);
    for (const std::size_t most : {std::size_t{1}, std::size_t{100}, n, Device::kNoLimit}) {
      BitsList expected = all;
      std::ranges::stable_sort(expected, std::greater(), [](const auto& e) { return e.second & 0x7fffffffU; });
      expected.resize(std::min(most, expected.size()));
      std::ranges::sort(expected);
      SparseVector out;
      EXPECT_EQ(device_->accumulate_select({acc.span(), zeros.gradient()}, 0.7F, out, most), all.size());
      ASSERT_EQ(bits_list_of(out), expected) << n << " " << most;
    }
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

TEST(MagnitudeBin, edge_belongs_to_its_bin_and_the_value_below_to_the_one_before) {
  ASSERT_LT(magnitude_bin(std::numeric_limits<float>::max()) + 1, kMagnitudeBins);
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
