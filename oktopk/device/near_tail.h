// SPDX-License-Identifier: Apache-2.0
// Entries just below a threshold, counted in a few narrow bins: they say how far the threshold must
// fall to let a given number of entries more through. circulant's owners report it with their
// shares. An owner's memory is densest just below the threshold, where the entries wait that almost
// were taken, so the bins must be narrow: the window's width is chosen by whoever steers the
// threshold.
#pragma once

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
  std::uint64_t arrivals = 0;                // entries that were taken because something was added to them
  std::array<std::uint64_t, kBins> below{};  // from the threshold downwards, equal widths

  void count(const Threshold& threshold, std::span<const float> values) {
    const Window window(threshold);
    for (const float x : values) window.count(x, *this);
  }

  // Sorts magnitudes into the bins.
  class Window {
   public:
    explicit Window(const Threshold& threshold)
        : top_(threshold.value),
          scale_(threshold.value > 0 && threshold.window > 0 ? kBins / (threshold.value * threshold.window) : 0) {}

    void count(float x, NearTail& tail) const {
      const float place = (top_ - std::fabs(x)) * scale_;
      if (place > 0 && place < static_cast<float>(kBins)) ++tail.below[static_cast<std::size_t>(place)];
    }

   private:
    float top_;
    float scale_;
  };

  NearTail& operator+=(const NearTail& other) {
    arrivals += other.arrivals;
    for (std::size_t j = 0; j < kBins; ++j) below[j] += other.below[j];
    return *this;
  }
};

}  // namespace oktopk
