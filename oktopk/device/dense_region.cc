// SPDX-License-Identifier: Apache-2.0
#include "oktopk/device/dense_region.h"

#include <algorithm>
#include <bit>

#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

// In widths of the threshold's window: the log begins between the last two below the threshold. So
// far the threshold may fall before the next scan.
constexpr float kLogFrom = 3;
constexpr float kLogTooLow = 8;
constexpr std::size_t kAhead = 24;    // entries: how far ahead cache lines are asked for
constexpr std::size_t kPiece = 4096;  // entries of the log that are filtered at a time

// Zeros are never taken.
std::uint32_t bits_of_threshold(float threshold) { return std::max(magnitude_bits(threshold), 1U); }

// `windows` widths of the window below the threshold.
float below(const Threshold& threshold, float windows) {
  return threshold.value * std::max(0.0F, 1 - windows * threshold.window);
}

}  // namespace

void DenseRegion::reset(Range region, CooView v) {
  region_ = region;
  values_.assign(region.width(), 0.0F);
  for (std::size_t j = 0; j < v.size(); ++j) values_[v.idx[j] - region.begin] = v.val[j];
  log_.clear();
  logged_from_ = kAboveAll;  // nothing is known: the next threshold makes a scan
}

void DenseRegion::add_take(const Device& device, CooView v, const Threshold& threshold,
                           SparseVector& taken, NearTail& near) {
  const std::uint32_t bits = bits_of_threshold(threshold.value);
  if (bits_of_threshold(threshold.window_end()) < logged_from_ ||
      log_.size() > 2 * scanned_ + values_.size() / 16) {
    scan(device, below(threshold, kLogFrom));
  } else if (logged_from_ < bits_of_threshold(below(threshold, kLogTooLow))) {
    logged_from_ = bits_of_threshold(below(threshold, kLogFrom));
  }
  visit(v, bits, taken);
  near = {};
  near.arrivals = taken.size();
  // Nothing that was visited is large enough any more: these are the others.
  take_logged(threshold.value);
  near.count(threshold, log_.val);
  if (large_.empty()) return;
  merged_.resize(taken.size() + large_.size());
  merge(taken, large_, {merged_.idx.data(), merged_.val.data()});
  std::swap(taken, merged_);
}

void DenseRegion::visit(CooView v, std::uint32_t threshold, SparseVector& taken) {
  taken.resize(v.size());
  std::size_t logged = log_.size();
  log_.resize(logged + v.size());
  float* const values = values_.data();
  const CooSink out{taken.idx.data(), taken.val.data()};
  const CooSink log{log_.idx.data(), log_.val.data()};
  const Index begin = region_.begin;
  const std::uint32_t logged_from = logged_from_;
  const std::size_t last = v.size() - 1;
  std::size_t count = 0;
  for (std::size_t j = 0; j < v.size(); ++j) {
    __builtin_prefetch(values + (v.idx[std::min(j + kAhead, last)] - begin), 1);
    const Index i = v.idx[j];
    const float after = values[i - begin] + v.val[j];
    const bool leaves = magnitude_bits(after) >= threshold;
    values[i - begin] = leaves ? 0.0F : after;
    out.idx[count] = log.idx[logged] = i;
    out.val[count] = log.val[logged] = after;
    count += static_cast<std::size_t>(leaves);
    logged += static_cast<std::size_t>(!leaves & (magnitude_bits(after) >= logged_from));
  }
  taken.resize(count);
  log_.resize(logged);
}

void DenseRegion::add(CooView v) { visit(v, kAboveAll, large_); }

void DenseRegion::take_logged(float threshold) {
  const std::uint32_t bits = bits_of_threshold(threshold);
  const CooView log = log_;
  std::size_t found = 0;
  for (std::size_t first = 0; first < log.size(); first += kPiece) {
    const CooView piece = log.slice(first, std::min(kPiece, log.size() - first));
    large_.resize(found + piece.size() + kSlack);
    const CooSink to = CooSink{large_.idx.data(), large_.val.data()} + found;
    found += sparse_kernels().filter(piece, bits, to, {});
  }
  // Former values may be as large, too: what counts is the present one.
  std::size_t count = 0;
  for (std::size_t j = 0; j < found; ++j) {
    float& x = values_[large_.idx[j] - region_.begin];
    if (magnitude_bits(x) < bits) continue;
    large_.idx[count] = large_.idx[j];
    large_.val[count] = x;
    ++count;
    x = 0.0F;
  }
  large_.resize(count);
  make_canonical(large_, runs_);
}

void DenseRegion::scan(const Device& device, float from) {
  logged_from_ = bits_of_threshold(from);
  log_.clear();
  device.select_at_least(values_, region_.begin, from, log_);
  scanned_ = log_.size();
}

void DenseRegion::scale(const Device& device, float factor) {
  device.multiply(values_, factor);
  log_.clear();
  logged_from_ = kAboveAll;
}

}  // namespace oktopk
