// SPDX-License-Identifier: Apache-2.0
// The reference of the CPU device's kernels, and what the vector variants use for the elements
// that do not fill a vector.
#include <algorithm>

#include "oktopk/device/cpu_kernels.h"

namespace oktopk {
namespace {

void mark(std::span<const float> x, std::uint32_t bound, std::uint8_t* marks) {
  for (std::size_t i = 0; i < x.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t j = i; j < std::min(i + 8, x.size()); ++j)
      byte |= static_cast<unsigned>(magnitude_bits(x[j]) >= bound) << (j - i);
    marks[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

std::size_t emit(std::span<const float> x, const Marks& marks, const Target& to) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < x.size(); i += 8)
    for (unsigned byte = marks[i / 8]; byte != 0; byte &= byte - 1) {
      const std::size_t at = i + static_cast<std::size_t>(std::countr_zero(byte));
      to.idx[count] = to.base + static_cast<Index>(at);
      to.val[count++] = x[at];
    }
  return count;
}

template <class T>
void accumulate(std::span<float> acc, const Addend& add) {
  const T* gradient = static_cast<const T*>(add.gradient);
  for (std::size_t i = 0; i < acc.size(); ++i) acc[i] += add.scale * to_float(gradient[i]);
}

template <class T>
void accumulate_mark(std::span<float> acc, const Addend& add, std::uint32_t bound,
                     std::uint8_t* marks) {
  accumulate<T>(acc, add);
  mark(acc, bound, marks);
}

void multiply(std::span<float> x, float factor) {
  for (float& v : x) v *= factor;
}

template <class T>
std::size_t first_nonfinite(const void* x, std::size_t n) {
  const T* values = static_cast<const T*>(x);
  for (std::size_t i = 0; i < n; ++i)
    if (magnitude_bits(to_float(values[i])) >= kInfinityBits) return i;
  return n;
}

void add_moments(std::span<const float> x, MomentLanes& lanes) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    lanes.sum[i % MomentLanes::kLanes] += v;
    lanes.squares[i % MomentLanes::kLanes] += v * v;
  }
}

constexpr CpuKernels kKernels = {
    .mark = mark,
    .accumulate_mark = {accumulate_mark<float>, accumulate_mark<Bf16>, accumulate_mark<Fp16>},
    .emit = emit,
    .accumulate = {accumulate<float>, accumulate<Bf16>, accumulate<Fp16>},
    .multiply = multiply,
    .first_nonfinite = {first_nonfinite<float>, first_nonfinite<Bf16>, first_nonfinite<Fp16>},
    .add_moments = add_moments,
};

}  // namespace

const CpuKernels& cpu_kernels_scalar() { return kKernels; }

}  // namespace oktopk
