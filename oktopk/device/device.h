// SPDX-License-Identifier: Apache-2.0
// A Device owns what is of length n (or n/P): gradient, residual and an owner's memory; and it has every verb that
// walks over them. Sparse entries, about k of them, live in host memory (sparse/, codec/). One virtual call per pass,
// never per element. Every device, SIMD level and number of threads gives the bits of the scalar code.
//
// Magnitudes are compared as the bits of |x|, which is the order of the numbers with Inf and then NaN on top: a pass
// that selects never misses a value that is not finite. Zeros are never selected, whatever the threshold. Thresholds
// are finite and not negative.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "oktopk/base/gradient.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Magnitudes sorted into 8192 bins by the 13 leading bits of the number (8 exponent, 5 mantissa): 32 bins per octave,
// exact edges, any scale. Counts are 64-bit so that they can be summed over ranks.
inline constexpr std::size_t kMagnitudeBins = 8192;
inline constexpr std::size_t kBinsPerOctave = 32;
using MagnitudeHistogram = std::array<std::uint64_t, kMagnitudeBins>;

inline std::size_t magnitude_bin(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffU) >> 18U; }
// The smallest magnitude in the bin.
inline float magnitude_bin_edge(std::size_t bin) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bin) << 18U);
}

struct Moments {
  double mean = 0;
  double standard_deviation = 0;
};

// acc = (acc, with the entries at `cleared` set to zero) + scale * gradient. An empty gradient adds nothing. Clearing
// here what was sent in the last step costs nothing, since the pass visits every element anyway.
struct Accumulation {
  std::span<float> acc;
  Gradient gradient = {};
  float scale = 1.0F;
  std::span<const Index> cleared = {};  // increasing
};

using DeviceFloats = std::unique_ptr<float[], std::function<void(float*)>>;

// One thread at a time may use a device.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  // Memory of this device for n floats, all zero; given back with its owner.
  virtual DeviceFloats allocate(std::size_t n) const = 0;

  // The first i with x[i] NaN or infinite; x.size() when all are finite.
  virtual std::size_t first_nonfinite(Gradient x) const = 0;

  virtual void accumulate(const Accumulation& in) const = 0;

  virtual void multiply(std::span<float> x, float factor) const = 0;

  // accumulate, and in the same pass out = {(i, acc[i]) : |acc[i]| >= threshold, acc[i] != 0}.
  virtual void accumulate_select(const Accumulation& in, float threshold, SparseVector& out) const = 0;

  // Appends {(base + i, x[i]) : |x[i]| >= threshold, x[i] != 0} to out.
  virtual void select_at_least(std::span<const float> x, Index base, float threshold, SparseVector& out) const = 0;

  // Adds the count of x's non-zero magnitudes per bin to `bins`.
  virtual void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const = 0;

  // A sample of what accumulate would make of the elements: the bits of the magnitudes of four neighbours (a cache line
  // has no more to give) at every offset + i * stride. Elements beyond the end are left out. REQUIRES: stride >= 4.
  virtual void sample_magnitudes(const Accumulation& in, std::size_t offset, std::size_t stride,
                                 Uninitialised<std::uint32_t>& out) const = 0;

  virtual Moments moments(std::span<const float> x) const = 0;

  // x[idx - base] += val, for every entry of v.
  virtual void add_at(std::span<float> x, Index base, CooView v) const = 0;
  // x[idx - base] = 0, for every index of v.
  virtual void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const = 0;
};

struct CpuOptions {
  int threads = 1;  // that share each pass; the results do not depend on it
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

}  // namespace oktopk
