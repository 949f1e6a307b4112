// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/region_memory.h"

#include <algorithm>
#include <bit>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/merge.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// In widths of the threshold's window: the log begins this far below the threshold; a log that begins deeper than
// kLogTooLow is cut.
constexpr float kLogFrom = 2;
constexpr float kLogTooLow = 6;
// In entries: how far ahead cache lines are requested, into the second cache, which takes more requests at a time, and
// into the first.
constexpr std::size_t kFarAhead = 96;
constexpr std::size_t kAhead = 16;

// At least 1: zeros are never taken.
std::uint32_t bits_of_threshold(float threshold) { return std::max(magnitude_bits(threshold), 1U); }

// `windows` widths of the window below the threshold.
float below(const Threshold& threshold, float windows) {
  return threshold.value * std::max(0.0F, 1 - windows * threshold.window);
}

}  // namespace

void RegionMemory::reset(Range region) {
  region_ = region;
  values_.assign(region.width(), 0.0F);
  forget_log();
}

void RegionMemory::load(Range region, std::span<const float> values) {
  OKTOPK_DCHECK(values.size() == region.width());
  region_ = region;
  values_.assign(values.begin(), values.end());
  forget_log();
}

// Nothing is known about the values: the next threshold causes a scan.
void RegionMemory::forget_log() {
  log_.clear();
  is_logged_.assign(values_.size() / 64 + 1, 0);
  logged_from_ = kAboveAll;
}

void RegionMemory::append_to(const Device& device, SparseVector& out) const {
  device.select_at_least(values_, region_.begin, 0.0F, out);
}

void RegionMemory::append_largest(const Device& device, std::size_t count, SparseVector& out) const {
  MagnitudeHistogram bins{};
  device.magnitude_histogram(values_, bins);
  std::size_t bin = kMagnitudeBins - 1;
  for (std::uint64_t above = bins[bin]; above < count && bin > 0;) above += bins[--bin];
  device.select_at_least(values_, region_.begin, magnitude_bin_edge(bin), out);
}

void RegionMemory::add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken,
                            NearTail& near) {
  const std::uint32_t bits = bits_of_threshold(threshold.value);
  if (bits_of_threshold(threshold.window_end()) < logged_from_ || log_.size() > most_logged()) {
    scan(device, below(threshold, kLogFrom));
  } else if (logged_from_ < bits_of_threshold(below(threshold, kLogTooLow))) {
    logged_from_ = bits_of_threshold(below(threshold, kLogFrom));
  }
  visit(v, bits, taken);
  near = {};
  near.arrivals = taken.size();
  // No visited entry is large enough any more: the log gives the others.
  take_logged(threshold, near);
  if (large_.empty()) return;
  merged_.resize(taken.size() + large_.size());
  merge(taken, large_, {merged_.idx.data(), merged_.val.data()});
  std::swap(taken, merged_);
}

void RegionMemory::visit(CooView v, std::uint32_t threshold, SparseVector& taken) {
  taken.resize(v.size());
  float* const values = values_.data();
  const CooSink out{taken.idx.data(), taken.val.data()};
  const Index begin = region_.begin;
  const std::uint32_t logged_from = logged_from_;
  const std::size_t last = v.size() - 1;
  std::size_t count = 0;
  for (std::size_t j = 0; j < v.size(); ++j) {
    __builtin_prefetch(values + (v.idx[std::min(j + kFarAhead, last)] - begin), 1, 2);
    __builtin_prefetch(values + (v.idx[std::min(j + kAhead, last)] - begin), 1);
    const Index i = v.idx[j];
    const float after = values[i - begin] + v.val[j];
    const bool leaves = magnitude_bits(after) >= threshold;
    values[i - begin] = leaves ? 0.0F : after;
    out.idx[count] = i;
    out.val[count] = after;
    count += static_cast<std::size_t>(leaves);
    if (!leaves && magnitude_bits(after) >= logged_from) {
      std::uint64_t& word = is_logged_[(i - begin) / 64];
      const std::uint64_t bit = std::uint64_t{1} << ((i - begin) % 64);
      if ((word & bit) == 0) log_.push_back(i);
      word |= bit;
    }
  }
  taken.resize(count);
}

void RegionMemory::add(CooView v) { visit(v, kAboveAll, large_); }

void RegionMemory::take_logged(const Threshold& threshold, NearTail& near) {
  const std::uint32_t bits = bits_of_threshold(threshold.value);
  const NearTail::Window window(threshold);
  float* const values = values_.data();
  const Index begin = region_.begin;
  const std::size_t last = log_.size() - 1;
  large_.clear();
  for (std::size_t j = 0; j < log_.size(); ++j) {
    __builtin_prefetch(values + (log_[std::min(j + kFarAhead, last)] - begin), 1, 2);
    __builtin_prefetch(values + (log_[std::min(j + kAhead, last)] - begin), 1);
    float& x = values[log_[j] - begin];
    if (magnitude_bits(x) >= bits) {
      large_.push_back(log_[j], x);
      x = 0.0F;
    } else {
      window.count(x, near);
    }
  }
  make_canonical(large_, runs_);
}

void RegionMemory::scan(const Device& device, float from) {
  forget_log();
  logged_from_ = bits_of_threshold(from);
  large_.clear();
  device.select_at_least(values_, region_.begin, from, large_);
  log_.assign(large_.idx.begin(), large_.idx.end());
  for (const Index i : log_) is_logged_[(i - region_.begin) / 64] |= std::uint64_t{1} << ((i - region_.begin) % 64);
  scanned_ = log_.size();
}

// A longer log is replaced by a scan.
std::size_t RegionMemory::most_logged() const { return 2 * scanned_ + values_.size() / 64; }

void RegionMemory::scale(const Device& device, float factor) {
  if (factor == 0) return reset(region_);
  device.multiply(values_, factor);
  forget_log();
}

}  // namespace oktopk
