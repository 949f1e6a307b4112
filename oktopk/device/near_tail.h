// SPDX-License-Identifier: Apache-2.0
// What lies just below a threshold, counted in a few narrow bins: how far the threshold must fall
// to let a given number of entries more through. circulant's owners report it with their shares.
// An owner's memory is densest just below the threshold, where the entries wait that almost were
// taken, so the bins must be narrow: the window's width is chosen by whoever steers the threshold.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace oktopk {

// Entries of at least `value` are taken; the window reaches down to value * (1 - window).
struct Threshold {
  float value = 0;
  float window = 0;

  float window_end() const { return value * (1 - window); }
};

struct NearTail {
  static constexpr std::size_t kBins = 8;
  std::uint64_t arrivals = 0;  // entries that were taken because something was added to them
  std::array<std::uint64_t, kBins> below{};  // from the threshold downwards, equal widths

  // Counts the magnitudes that lie in the window.
  void count(const Threshold& threshold, std::span<const float> values) {
    if (threshold.value <= 0 || threshold.window <= 0) return;
    const float scale = kBins / (threshold.value * threshold.window);
    std::array<std::uint64_t, kBins + 1> bins{};  // the last one: not in the window
    for (const float x : values) {
      const float place = (threshold.value - std::fabs(x)) * scale;
      const bool is_inside = place > 0 && place < static_cast<float>(kBins);
      ++bins[is_inside ? static_cast<std::size_t>(place) : kBins];
    }
    for (std::size_t j = 0; j < kBins; ++j) below[j] += bins[j];
  }

  NearTail& operator+=(const NearTail& other) {
    arrivals += other.arrivals;
    for (std::size_t j = 0; j < kBins; ++j) below[j] += other.below[j];
    return *this;
  }
};

}  // namespace oktopk
