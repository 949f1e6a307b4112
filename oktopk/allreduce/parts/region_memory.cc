// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/region_memory.h"

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

// In widths of the threshold's window: the log begins this far below the threshold; a log that begins deeper than
// kLogTooLow is cut.
constexpr float kLogFrom = 2;
constexpr float kLogTooLow = 6;

// At least 1: zeros are never taken.
std::uint32_t bits_of_threshold(float threshold) { return std::max(magnitude_bits(threshold), 1U); }

// `windows` widths of the window below the threshold.
float below(const Threshold& threshold, float windows) {
  return threshold.value * std::max(0.0F, 1 - windows * threshold.window);
}

}  // namespace

void RegionMemory::load(const Device& device, Range region, std::span<const float> host) {
  OKTOPK_DCHECK(host.empty() || host.size() == region.width());
  if (changes_.is_on()) note_all(device);
  if (region.width() > capacity_) {
    capacity_ = region.width();
    memory_ = {};  // first, so that there is never room for both
    memory_ = device.allocate(capacity_);
  }
  region_ = region;
  device.write(floats(), host);
  forget_log();
}

// All values are about to go. Only those of before the step are worth keeping.
void RegionMemory::note_all(const Device& device) {
  changes_.undo(device, floats(), region_.begin);
  if (replaced_) return;
  replaced_.emplace(Replaced{region_, {}});
  append_to(device, replaced_->entries);
}

void RegionMemory::note_changes() {
  replaced_.reset();
  changes_.begin();
}

void RegionMemory::forget_changes() {
  replaced_.reset();
  changes_.end();
}

void RegionMemory::undo(const Device& device) {
  changes_.undo(device, floats(), region_.begin);
  changes_.end();
  if (replaced_) {
    load(device, replaced_->region);
    device.add_at(floats(), region_.begin, replaced_->entries);
  }
  forget_changes();
  forget_log();
}

bool RegionMemory::read_changes(const Device& device, SparseVector& changed) {
  changed_.read(changes_, device, {floats(), region_.begin}, changed);
  return !replaced_;
}

// Nothing is known about the values: the next threshold causes a scan.
void RegionMemory::forget_log() {
  log_.clear();
  is_logged_.assign(region_.width() / 64 + 1, 0);
  logged_from_ = kAboveAll;
}

void RegionMemory::append_to(const Device& device, SparseVector& out) const {
  device.select_at_least(values(), region_.begin, 0.0F, out);
}

void RegionMemory::append_largest(const Device& device, std::size_t count, SparseVector& out) const {
  select_bins(device, values(), region_.begin, count, out);
}

void RegionMemory::add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken,
                            NearTail& near) {
  const std::uint32_t bits = bits_of_threshold(threshold.value);
  if (bits_of_threshold(threshold.window_end()) < logged_from_ || log_.size() > most_logged()) {
    scan(device, below(threshold, kLogFrom));
  } else if (logged_from_ < bits_of_threshold(below(threshold, kLogTooLow))) {
    logged_from_ = bits_of_threshold(below(threshold, kLogFrom));
  }
  visit(device, v, bits, taken);
  near = {};
  near.arrivals = taken.size();
  // No visited entry is large enough any more: the log gives the others.
  take_logged(device, threshold, near);
  if (large_.empty()) return;
  merged_.resize(taken.size() + large_.size());
  merge(taken, large_, {merged_.idx.data(), merged_.val.data()});
  std::swap(taken, merged_);
}

void RegionMemory::visit(const Device& device, CooView v, std::uint32_t threshold, SparseVector& taken) {
  changes_.add_take(device, floats(), region_.begin, v, {.take = threshold, .report = logged_from_}, taken, near_);
  for (const Index i : near_.idx) log(i);
}

void RegionMemory::add(const Device& device, CooView v) { visit(device, v, kAboveAll, large_); }

void RegionMemory::log(Index i) {
  std::uint64_t& word = is_logged_[(i - region_.begin) / 64];
  const std::uint64_t bit = std::uint64_t{1} << ((i - region_.begin) % 64);
  if ((word & bit) == 0) log_.push_back(i);
  word |= bit;
}

void RegionMemory::take_logged(const Device& device, const Threshold& threshold, NearTail& near) {
  const TakeBounds bounds{.take = bits_of_threshold(threshold.value), .report = 1};
  device.add_take(floats(), region_.begin, {log_, {}}, bounds, large_, near_);
  changes_.note_taken(large_);
  near.count(threshold, near_.val);
  make_canonical(large_, runs_);
}

void RegionMemory::scan(const Device& device, float from) {
  forget_log();
  logged_from_ = bits_of_threshold(from);
  large_.clear();
  device.select_at_least(values(), region_.begin, from, large_);
  for (const Index i : large_.idx) log(i);
  scanned_ = log_.size();
}

// A longer log is replaced by a scan.
std::size_t RegionMemory::most_logged() const { return 2 * scanned_ + region_.width() / 64; }

void RegionMemory::scale(const Device& device, float factor) {
  if (factor == 0) return load(device, region_);
  device.multiply(floats(), factor);
  forget_log();
}

}  // namespace oktopk
