// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/region_memory.h"

#include <algorithm>
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// Up to here, merging all that is held costs no more than visiting what arrives all over memory.
std::size_t most_few(Range region) { return std::max<std::size_t>(64, region.width() / 8); }

}  // namespace

void RegionMemory::reset(Range region) {
  region_ = region;
  is_full_ = false;
  few_.clear();
}

void RegionMemory::load(Range region, std::span<const float> values) {
  OKTOPK_DCHECK(values.size() == region.width());
  reset(region);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (magnitude_bits(values[i]) != 0) few_.push_back(static_cast<Index>(region.begin + i), values[i]);
  if (few_.size() > most_few(region_)) fill_up();
}

void RegionMemory::fill_up() const {
  all_.reset(region_, few_);
  few_.clear();
  is_full_ = true;
}

std::span<const float> RegionMemory::values() const {
  if (!is_full_) fill_up();
  return all_.values();
}

void RegionMemory::append_to(const Device& device, SparseVector& out) const {
  if (is_full_) {
    device.select_at_least(all_.values(), region_.begin, 0.0F, out);
  } else {
    for (std::size_t j = 0; j < few_.size(); ++j)
      if (magnitude_bits(few_.val[j]) != 0) out.push_back(few_.idx[j], few_.val[j]);
  }
}

void RegionMemory::append_largest(const Device& device, std::size_t count, SparseVector& out) const {
  if (!is_full_) return append_to(device, out);
  MagnitudeHistogram bins{};
  device.magnitude_histogram(all_.values(), bins);
  std::size_t bin = kMagnitudeBins - 1;
  for (std::uint64_t above = bins[bin]; above < count && bin > 0;) above += bins[--bin];
  device.select_at_least(all_.values(), region_.begin, magnitude_bin_edge(bin), out);
}

void RegionMemory::add_take(const Device& device, CooView v, const Threshold& threshold, SparseVector& taken,
                            NearTail& near) {
  if (is_full_) return all_.add_take(device, v, threshold, taken, near);
  taken.clear();
  sum(std::array{few_.view(), v}, region_, taken);
  few_.clear();
  keep_at_least(taken, threshold.value, &few_);
  near = {};
  intersect(taken, v.idx, sum_);
  near.arrivals = sum_.size();
  near.count(threshold, few_.val);
  if (few_.size() > most_few(region_)) fill_up();
}

void RegionMemory::add(CooView v) {
  if (v.empty()) return;
  if (is_full_) return all_.add(v);
  sum(std::array{few_.view(), v}, region_, sum_);
  std::swap(few_, sum_);
}

void RegionMemory::scale(const Device& device, float factor) {
  if (factor == 0) {
    reset(region_);
  } else if (is_full_) {
    all_.scale(device, factor);
  } else {
    device.multiply(few_.val, factor);
  }
}

}  // namespace oktopk
