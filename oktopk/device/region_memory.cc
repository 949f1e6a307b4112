// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/region_memory.h"

#include <algorithm>
#include <bit>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
// Of the threshold: what is marked begins between these two. The threshold may fall so far before
// the next scan; what lies between is visited in vain in every step.
constexpr float kMarkFrom = 0.95F;
constexpr float kMarkTooLow = 0.9F;
constexpr std::size_t kAhead = 24;  // entries: how far ahead cache lines are asked for

// Zeros are never selected.
std::uint32_t bits_of_threshold(float threshold) {
  return std::max(std::bit_cast<std::uint32_t>(threshold) & kMagnitude, 1U);
}

std::uint32_t magnitude_of(float x) { return std::bit_cast<std::uint32_t>(x) & kMagnitude; }

}  // namespace

void RegionMemory::reset(Range region) {
  region_ = region;
  values_.assign(region.width(), 0.0F);
  marks_.assign((region.width() + 63) / 64, 0);
  bins_.fill(0);
  marked_from_ = 1;  // zeros only: every bitmap of them is empty
}

void RegionMemory::load(Range region, std::span<const float> values) {
  OKTOPK_DCHECK(values.size() == region.width());
  reset(region);
  std::copy(values.begin(), values.end(), values_.begin());
  for (const float x : values_) bins_[magnitude_bin(x)] += static_cast<std::uint64_t>(x != 0.0F);
  marked_from_ = kMagnitude;  // nothing is known: the next threshold makes a scan
}

void RegionMemory::add_take(const Device& device, std::span<const CooView> parts, float threshold,
                            SparseVector& taken) {
  const std::uint32_t bits = bits_of_threshold(threshold);
  if (bits < marked_from_) {
    scan(device, threshold * kMarkFrom);
  } else if (marked_from_ < bits_of_threshold(threshold * kMarkTooLow)) {
    marked_from_ = bits_of_threshold(threshold * kMarkFrom);  // marks go when they are visited
  }
  taken.clear();
  next_.assign(parts.size(), 0);
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < values_.size(); begin += kBlock) {
    const std::uint64_t end = std::uint64_t{region_.begin} + begin + kBlock;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const CooView& v = parts[p];
      std::size_t last = next_[p];
      while (last < v.size() && v.idx[last] < end) ++last;
      add_part(v, next_[p], last);
      next_[p] = last;
    }
    take_block(begin, bits, taken, count);
  }
  taken.resize(count);
}

void RegionMemory::add_part(CooView v, std::size_t first, std::size_t last) {
  float* const values = values_.data();
  for (std::size_t j = first; j < last; ++j) {
    const std::size_t ahead = std::min(j + kAhead, v.size() - 1);
    __builtin_prefetch(values + (v.idx[ahead] - region_.begin), 1);
    const std::size_t i = v.idx[j] - region_.begin;
    const float before = values[i];
    const float after = before + v.val[j];
    values[i] = after;
    bins_[magnitude_bin(before)] -= static_cast<std::uint64_t>(before != 0.0F);
    bins_[magnitude_bin(after)] += static_cast<std::uint64_t>(after != 0.0F);
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    const std::uint64_t is_large = magnitude_of(after) >= marked_from_ ? ~std::uint64_t{0} : 0;
    std::uint64_t& word = marks_[i / 64];
    word = (word & ~bit) | (bit & is_large);
  }
}

// Moves what is large enough of the block that starts at `begin` to `taken` at `count`.
void RegionMemory::take_block(std::size_t begin, std::uint32_t threshold, SparseVector& taken,
                              std::size_t& count) {
  const std::size_t last_word = std::min(marks_.size(), (begin + kBlock) / 64);
  if (taken.size() < count + kBlock) taken.resize(std::max(count + kBlock, 2 * count));
  Index* const idx = taken.idx.data();
  float* const val = taken.val.data();
  for (std::size_t word = begin / 64; word < last_word; ++word) {
    for (std::uint64_t bits = marks_[word]; bits != 0; bits &= bits - 1) {
      const std::size_t i = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      const float x = values_[i];
      if (magnitude_of(x) < threshold) {
        if (magnitude_of(x) < marked_from_) marks_[word] &= ~(bits & -bits);
        continue;
      }
      idx[count] = static_cast<Index>(region_.begin + i);
      val[count] = x;
      ++count;
      --bins_[magnitude_bin(x)];
      values_[i] = 0.0F;
      marks_[word] &= ~(bits & -bits);
    }
  }
}

void RegionMemory::scan(const Device& device, float from) {
  marked_from_ = bits_of_threshold(from);
  large_.clear();
  device.select_at_least(values_, 0, from, large_);
  std::fill(marks_.begin(), marks_.end(), 0);
  for (const Index i : large_.idx) marks_[i / 64] |= std::uint64_t{1} << (i % 64);
}

void RegionMemory::scale(const Device& device, float factor) {
  if (factor == 0) return reset(region_);
  device.multiply(values_, factor);
  bins_.fill(0);
  device.magnitude_histogram(values_, bins_);
  marked_from_ = kMagnitude;
}

}  // namespace oktopk
