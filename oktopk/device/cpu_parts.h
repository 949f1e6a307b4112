// SPDX-License-Identifier: Apache-2.0
// The parts of the CPU device besides kernels: sections of tiles, the output of a selection, elements that count as
// zero; and verbs that gain nothing from vectors: entries at scattered places, histograms, samples.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/device/device.h"

namespace oktopk {

// Elements begin <= i < end.
struct Section {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// Appends to a sparse vector through its own memory; resizes it only when there is no room for one more tile.
class Output {
 public:
  explicit Output(SparseVector& out)
      : out_(out), count_(out.size()), room_(std::min(out.idx.capacity(), out.val.capacity())) {
    out_.resize(room_);
  }
  // The marks of the next tile; there are none beyond its end.
  Marks& marks(Section tile) {
    if (tile.size() < kTile) marks_ = {};
    return marks_;
  }

  // The marked elements of the tile.
  void append(const ElementKernels& use, const float* tile, Index base, const float* next) {
    if (count_ + kTile + kEmitSlack > room_) grow();
    count_ += use.emit(tile, marks_, base, CooSink{out_.idx.data(), out_.val.data()} + count_, next);
  }
  void finish() { out_.resize(count_); }

 private:
  void grow() {
    room_ = std::max(2 * room_, count_ + kTile + kEmitSlack);
    out_.resize(room_);
  }

  SparseVector& out_;
  std::size_t count_;
  std::size_t room_;
  alignas(64) Marks marks_{};
};

// Goes through the elements that count as zero, after their tile was accumulated: only then are they in the cache.
class Cleared {
 public:
  Cleared(const Accumulation& in, Section section) : in_(in) {
    const auto first_from = [&](std::size_t begin) {
      return static_cast<std::size_t>(std::lower_bound(in.cleared.begin(), in.cleared.end(), begin) -
                                      in.cleared.begin());
    };
    next_ = first_from(section.begin);
    last_ = first_from(section.end);
  }

  // Sets each element before `end` to its new value, then calls visit(i, value). Members are copied first: for all the
  // compiler knows, visit could change them.
  template <class Visit>
  void before(std::size_t end, Visit visit) {
    if (next_ == last_) return;
    in_.gradient.dispatch([this, end, visit](const auto* gradient) {
      const bool adds = !in_.gradient.empty();
      const float scale = in_.scale;
      float* acc = in_.acc.data();
      const Index* next = in_.cleared.data() + next_;
      const Index* last = in_.cleared.data() + last_;
      // Memory would be idle during this loop, so each turn prefetches one line of the next tile.
      const std::size_t stop = std::min(end + kTile, in_.acc.size()) - 1;
      std::size_t ahead = std::min(end, stop);
      for (; next != last && *next < end; ++next) {
        __builtin_prefetch(acc + ahead, 1);
        if (adds) __builtin_prefetch(gradient + ahead);
        ahead = std::min(ahead + 16, stop);
        const std::size_t i = *next;
        const float value = adds ? 0.0F + scale * to_float(gradient[i]) : 0.0F;
        acc[i] = value;
        visit(i, value);
      }
      next_ = static_cast<std::size_t>(next - in_.cleared.data());
    });
  }

 private:
  const Accumulation& in_;
  std::size_t next_ = 0;
  std::size_t last_ = 0;
};

inline void set_mark(std::uint64_t* marks, std::size_t i, bool passes) {
  const std::uint64_t others = marks[i / 64] & ~(std::uint64_t{1} << (i % 64));
  marks[i / 64] = others | (std::uint64_t{passes} << (i % 64));
}

// visit(x[idx[i] - base], i) for every i. Cache lines are requested ahead: into the second cache, which takes more
// requests at a time, and then into the first.
template <class Visit>
void for_entries(std::span<float> x, Index base, std::span<const Index> idx, Visit visit) {
  constexpr std::size_t kFarAhead = 96;
  constexpr std::size_t kAhead = 16;
  float* const values = x.data();
  const std::size_t last = idx.size() - 1;
  for (std::size_t i = 0; i < idx.size(); ++i) {
    __builtin_prefetch(values + (idx[std::min(i + kFarAhead, last)] - base), 1, 2);
    __builtin_prefetch(values + (idx[std::min(i + kAhead, last)] - base), 1);
    visit(values[idx[i] - base], i);
  }
}

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

// Each block of so many elements has its own sums.
constexpr std::size_t kMomentBlock = std::size_t{1} << 16;

// From the sums of n values and of their squares.
inline Moments moments_of(double sum, double squares, std::size_t n) {
  const double mean = sum / static_cast<double>(n);
  return {mean, std::sqrt(std::max(0.0, squares / static_cast<double>(n) - mean * mean))};
}

}  // namespace oktopk
