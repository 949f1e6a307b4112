// SPDX-License-Identifier: Apache-2.0
// What the CPU device counts: a histogram of magnitudes, and a sample of them. Neither gains from vectors.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/device/device.h"

namespace oktopk {

// Neighbours often share a bin, and an increment waits for the last one of the same place: so in long vectors four
// histograms take turns.
inline void count_magnitudes(std::span<const float> x, MagnitudeHistogram& bins) {
  if (x.size() < 2 * kMagnitudeBins) {
    for (const float v : x) bins[magnitude_bin(v)] += static_cast<std::uint64_t>(magnitude_bits(v) != 0);
    return;
  }
  constexpr std::size_t kTurns = 4;
  std::array<std::array<std::uint32_t, kMagnitudeBins>, kTurns> counts{};
  std::uint64_t zeros = 0;
  const std::size_t whole = x.size() / kTurns * kTurns;
  for (std::size_t i = 0; i < whole; i += kTurns)
    for (std::size_t turn = 0; turn < kTurns; ++turn) ++counts[turn][magnitude_bin(x[i + turn])];
  for (const float v : x.subspan(whole)) ++counts[0][magnitude_bin(v)];
  for (const float v : x) zeros += static_cast<std::uint64_t>(magnitude_bits(v) == 0);
  for (std::size_t b = 0; b < kMagnitudeBins; ++b)
    for (const auto& turn : counts) bins[b] += turn[b];
  bins[0] -= zeros;
}

// Steps through increasing indices, in strides where there are many.
class Walk {
 public:
  explicit Walk(std::span<const Index> idx) : idx_(idx) {}
  // Whether i is among them. REQUIRES: i not smaller than before.
  bool holds(std::size_t i) {
    while (at_ + kStride <= idx_.size() && idx_[at_ + kStride - 1] < i) at_ += kStride;
    while (at_ < idx_.size() && idx_[at_] < i) ++at_;
    return at_ < idx_.size() && idx_[at_] == i;
  }

 private:
  static constexpr std::size_t kStride = 16;
  std::span<const Index> idx_;
  std::size_t at_ = 0;
};

// Device::sample_magnitudes.
inline void sample_clusters(const Accumulation& in, std::size_t offset, std::size_t stride,
                            Uninitialised<std::uint32_t>& out) {
  constexpr std::size_t kCluster = 4;
  constexpr std::size_t kClustersAhead = 16;
  OKTOPK_DCHECK(stride >= kCluster);
  const std::size_t n = in.acc.size();
  const bool adds = !in.gradient.empty();
  Walk cleared(in.cleared);
  out.resize(offset < n ? ((n - offset - 1) / stride + 1) * kCluster : 0);
  std::uint32_t* to = out.data();
  in.gradient.dispatch([&](const auto* gradient) {
    for (std::size_t first = offset; first < n; first += stride) {
      const std::size_t later = std::min(first + kClustersAhead * stride, n - 1);
      __builtin_prefetch(in.acc.data() + later);
      if (adds) __builtin_prefetch(gradient + later);
      for (std::size_t i = first; i < std::min(n, first + kCluster); ++i) {
        const float before = cleared.holds(i) ? 0.0F : in.acc[i];
        *to++ = magnitude_bits(adds ? before + in.scale * to_float(gradient[i]) : before);
      }
    }
  });
  out.resize(static_cast<std::size_t>(to - out.data()));
}

}  // namespace oktopk
