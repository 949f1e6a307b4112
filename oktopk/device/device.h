// SPDX-License-Identifier: Apache-2.0
// A Device owns what is of length n (or n/P): gradient, residual and an owner's memory. No other code reads or writes
// that memory: the host of a GPU cannot. Sparse entries, about k of them, and buffers on their way to or from the wire
// live in host memory (sparse/, codec/). A pass costs one virtual call, never one per element. Every device, SIMD level
// and number of threads gives the bits of the scalar code.
//
// A pass that selects compares magnitude_bits(), so it never misses a value that is not finite. It never selects zeros,
// whatever the threshold. Thresholds are finite and not negative.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/base/gradient.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Magnitudes sorted into 8192 bins by the 13 leading bits of the number (8 exponent, 5 mantissa): 32 bins per octave,
// exact edges, any scale. Counts are 64-bit so that they can be summed over ranks.
inline constexpr std::size_t kMagnitudeBins = 8192;
using MagnitudeHistogram = std::array<std::uint64_t, kMagnitudeBins>;

inline std::size_t magnitude_bin(float x) { return magnitude_bits(x) >> 18U; }
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

// Bounds of add_take, as bits of magnitudes.
struct TakeBounds {
  std::uint32_t take;    // entries from here on are taken out; at least 1, so zeros stay
  std::uint32_t report;  // smaller entries from here on are reported
};

using DeviceFloats = std::unique_ptr<float[], std::function<void(float*)>>;

// One thread at a time may use a device.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  // Queues all later work on this stream (a cudaStream_t), behind the work of the stream before. Without streams:
  // nothing.
  virtual void use_stream(void* stream) const { static_cast<void>(stream); }

  // Memory of this device for n floats, all zero; given back with its owner.
  virtual DeviceFloats allocate(std::size_t n) const = 0;
  // Copies all elements of x, in their type, to host memory.
  virtual void read(Gradient x, void* host) const = 0;
  // Copies host memory of the size of x to x. An empty `host` sets x to zero.
  virtual void write(std::span<float> x, std::span<const float> host) const = 0;

  // The first i with x[i] NaN or infinite; x.size() when all are finite.
  virtual std::size_t first_nonfinite(Gradient x) const = 0;

  virtual void accumulate(const Accumulation& in) const = 0;

  virtual void multiply(std::span<float> x, float factor) const = 0;

  // accumulate, and in the same pass out = {(i, acc[i]) : |acc[i]| >= threshold, acc[i] != 0}, or the `most` largest of
  // these, of equal ones those with the smaller index. Returns how many reached the threshold.
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  virtual std::size_t accumulate_select(const Accumulation& in, float threshold, SparseVector& out,
                                        std::size_t most = kNoLimit) const = 0;

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
  // x[idx - base] += val, for every entry of v; v without values adds nothing. Then `taken` receives the entries that
  // are taken out of x, which leaves zeros, and `reported` the reported ones, which stay; both in the order of v.
  // `before`: room in host memory for the values that x had at v's indices; null: nobody asks.
  // REQUIRES: no index occurs twice.
  virtual void add_take(std::span<float> x, Index base, CooView v, const TakeBounds& bounds, SparseVector& taken,
                        SparseVector& reported, float* before = nullptr) const = 0;
};

// x[i], wherever it lies; for error messages.
inline float value_at(const Device& device, Gradient x, std::size_t i) {
  alignas(float) std::array<std::byte, sizeof(float)> host;
  device.read(x.subspan(i, 1), host.data());
  return Gradient(host.data(), 1, x.type())[0];
}

struct CpuOptions {
  int threads = 1;  // that share each pass; the results do not depend on it
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

struct CudaOptions {
  int ordinal = 0;           // the GPU
  void* stream = nullptr;    // a cudaStream_t on which all work is queued; null: the legacy default stream
  std::string library = {};  // the path of liboktopk_cuda.so; empty: beside this library, then where the system looks
  CpuOptions cpu = {};       // for what lies in host memory
};
// An NVIDIA GPU of compute capability 8.0 or newer. Gradients may lie in its memory or in that of the host. DeviceError
// when there is no such GPU, no driver or no liboktopk_cuda.so; UsageError for memory of another GPU.
std::unique_ptr<Device> make_cuda_device(const CudaOptions& options = {});

}  // namespace oktopk
