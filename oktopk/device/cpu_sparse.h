// SPDX-License-Identifier: Apache-2.0
// The verbs of the CPU device that gain nothing from vectors: entries at scattered places, samples,
// histograms. What they wait for is memory, so they ask for it ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/device/device.h"

namespace oktopk {

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

// Device::magnitude_histogram and Device::sample_magnitudes.
void count_magnitudes(std::span<const float> x, MagnitudeHistogram& bins);
void sample_clusters(const Accumulation& in, std::size_t offset, std::size_t stride, Uninitialised<std::uint32_t>& out);

}  // namespace oktopk
