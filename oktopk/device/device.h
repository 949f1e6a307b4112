// SPDX-License-Identifier: Apache-2.0
// The element waist: every verb that touches the n elements of a gradient, a residual or an owner's
// memory. One virtual call per pass, never per element. cpu now; the scalar code is the reference
// that every faster variant must equal bit for bit.
//
// Magnitudes are compared as |x|; zeros are never selected, whatever the threshold. All inputs are
// finite: first_nonfinite() is the check, and callers make it before they change any state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "oktopk/sparse/coo.h"

namespace oktopk {

// Magnitudes sorted into 2048 bins by the 11 leading bits of the number (8 exponent, 3 mantissa):
// eight bins per octave, exact edges, any scale. Counts are 64-bit so that they can be summed over
// ranks.
inline constexpr std::size_t kMagnitudeBins = 2048;
using MagnitudeHistogram = std::array<std::uint64_t, kMagnitudeBins>;

std::size_t magnitude_bin(float x);
float magnitude_bin_edge(std::size_t bin);  // the smallest magnitude in the bin

struct Moments {
  double mean = 0;
  double standard_deviation = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  // The first i with x[i] NaN or infinite; x.size() when all are finite.
  virtual std::size_t first_nonfinite(std::span<const float> x) const = 0;

  // acc += scale * gradient.
  virtual void accumulate(std::span<float> acc, std::span<const float> gradient,
                          float scale) const = 0;

  virtual void multiply(std::span<float> x, float factor) const = 0;

  // accumulate, and in the same pass out = {(i, acc[i]) : |acc[i]| >= threshold, acc[i] != 0}.
  virtual void accumulate_select(std::span<float> acc, std::span<const float> gradient, float scale,
                                 float threshold, SparseVector& out) const = 0;

  // Appends {(base + i, x[i]) : |x[i]| >= threshold, x[i] != 0} to out.
  virtual void select_at_least(std::span<const float> x, Index base, float threshold,
                               SparseVector& out) const = 0;

  // Adds the count of x's non-zero magnitudes per bin to `bins`.
  virtual void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const = 0;

  // out = |acc[i] + scale * gradient[i]| for i = offset, offset + stride, ... (an empty gradient
  // counts as zero).
  virtual void sample_magnitudes(std::span<const float> acc, std::span<const float> gradient,
                                 float scale, std::size_t offset, std::size_t stride,
                                 Uninitialised<float>& out) const = 0;

  virtual Moments moments(std::span<const float> x) const = 0;

  // x[idx - base] += val, for every entry of v.
  virtual void add_at(std::span<float> x, Index base, CooView v) const = 0;
  virtual void subtract_at(std::span<float> x, Index base, CooView v) const = 0;
  // x[idx - base] = 0, for every index of v.
  virtual void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const = 0;
};

std::unique_ptr<Device> make_cpu_device();

}  // namespace oktopk
