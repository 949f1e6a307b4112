// SPDX-License-Identifier: Apache-2.0
// What the CPU device needs while it walks a section tile by tile: where selected entries go, and
// which elements count as zero.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/device/cpu_kernels.h"
#include "oktopk/device/device.h"

namespace oktopk {

// Elements begin <= i < end.
struct Section {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// What the next tile will read. While entries of this one are written, memory would be idle and the
// processor's own prefetching fall asleep, so every few entries ask for some of it.
class Following {
 public:
  Following() = default;
  // `gradient` may be nothing.
  Following(const float* x, const void* gradient)
      : x_(reinterpret_cast<const std::byte*>(x)),
        gradient_(static_cast<const std::byte*>(gradient == nullptr ? x : gradient)) {}

  void prefetch() {
    for (std::size_t line = 0; line < kLines; ++line) {
      __builtin_prefetch(x_ + line * kLine);
      __builtin_prefetch(gradient_ + line * kLine);
    }
    x_ += kLines * kLine;
    gradient_ += kLines * kLine;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kLines = 4;
  const std::byte* x_ = nullptr;
  const std::byte* gradient_ = nullptr;
};

// Appends to a sparse vector through its own memory: as long as that has room for one more tile,
// nothing is asked of it.
class Output {
 public:
  explicit Output(SparseVector& out)
      : out_(out), count_(out.size()), room_(std::min(out.idx.capacity(), out.val.capacity())) {
    out_.resize(room_);
  }
  // For the next tile: beyond its end there are no marks.
  Marks& marks(Section tile) {
    if (tile.size() < kTile) marks_ = {};
    return marks_;
  }

  // The marked elements of the tile. Words of marks that are not zero are queued without a branch;
  // most have one or two, which are written without asking.
  void append(const float* tile, Index base, Following next) {
    if (count_ + kTile + 2 > room_) grow();
    std::array<std::uint32_t, kTile / 64 + 1> queue;
    std::size_t queued = 0;
    for (std::uint32_t w = 0; w < marks_.size(); ++w) {
      queue[queued] = w;
      queued += static_cast<std::size_t>(marks_[w] != 0);
    }
    Index* idx = out_.idx.data() + count_;
    float* val = out_.val.data() + count_;
    for (std::size_t q = 0; q < queued; ++q) {
      next.prefetch();
      const std::uint32_t first = 64 * queue[q];
      std::uint64_t word = marks_[queue[q]];
      const int ones = std::popcount(word);
      std::uint32_t i = first + static_cast<std::uint32_t>(std::countr_zero(word));
      idx[0] = base + i;
      val[0] = tile[i];
      word &= word - 1;
      i = first + static_cast<std::uint32_t>(std::countr_zero(word)) % 64;
      idx[1] = base + i;
      val[1] = tile[i];
      word &= word - 1;
      for (std::size_t at = 2; word != 0; ++at, word &= word - 1) {
        i = first + static_cast<std::uint32_t>(std::countr_zero(word));
        idx[at] = base + i;
        val[at] = tile[i];
      }
      idx += ones;
      val += ones;
    }
    count_ = static_cast<std::size_t>(idx - out_.idx.data());
  }
  void finish() { out_.resize(count_); }

 private:
  void grow() {
    room_ = std::max(2 * room_, count_ + kTile + 2);
    out_.resize(room_);
  }

  SparseVector& out_;
  std::size_t count_;
  std::size_t room_;
  alignas(64) Marks marks_{};
};

// Goes through the elements that count as zero, after their tile was accumulated: only then are
// they in the cache.
class Cleared {
 public:
  Cleared(const Accumulation& in, Section section) : in_(in) {
    const auto first_from = [&](std::size_t begin) {
      return static_cast<std::size_t>(
          std::lower_bound(in.cleared.begin(), in.cleared.end(), begin) - in.cleared.begin());
    };
    next_ = first_from(section.begin);
    last_ = first_from(section.end);
  }

  // Sets each up to `end` to what it becomes; visit(i, value) follows. Everything is copied first:
  // for all the compiler knows, what visit writes could change it.
  template <class Visit>
  void before(std::size_t end, Visit visit) {
    if (next_ == last_) return;
    in_.gradient.dispatch([this, end, visit](const auto* gradient) {
      const bool adds = !in_.gradient.empty();
      const float scale = in_.scale;
      float* acc = in_.acc.data();
      const Index* next = in_.cleared.data() + next_;
      const Index* last = in_.cleared.data() + last_;
      for (; next != last && *next < end; ++next) {
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

}  // namespace oktopk
