// SPDX-License-Identifier: Apache-2.0
// What the CPU device needs besides kernels: sections of tiles, where selected entries go, which elements count as
// zero, and verbs at scattered places, which wait for memory and so prefetch it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

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
  void append(const ElementKernels& use, const float* tile, Index base, const Following& next) {
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

// visit(x[idx[i] - base], i) for every i.
template <class Visit>
void for_entries(std::span<float> x, Index base, std::span<const Index> idx, const Visit& visit) {
  constexpr std::size_t kAhead = 32;
  const std::size_t steady = idx.size() > kAhead ? idx.size() - kAhead : 0;
  float* values = x.data();
  for (std::size_t i = 0; i < steady; ++i) {
    __builtin_prefetch(values + (idx[i + kAhead] - base), 1);
    visit(values[idx[i] - base], i);
  }
  for (std::size_t i = steady; i < idx.size(); ++i) visit(values[idx[i] - base], i);
}

}  // namespace oktopk
