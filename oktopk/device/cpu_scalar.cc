// SPDX-License-Identifier: Apache-2.0
// The reference of the CPU device's kernels, and what the vector variants use for the elements
// that do not fill a vector.
#include <algorithm>

#include "oktopk/device/cpu_emit.h"
#include "oktopk/device/cpu_kernels.h"

namespace oktopk {
namespace {

void mark(std::span<const float> x, std::uint32_t bound, std::uint64_t* marks) {
  for (std::size_t i = 0; i < x.size(); i += 64) {
    std::uint64_t word = 0;
    for (std::size_t j = i; j < std::min(i + 64, x.size()); ++j)
      word |= static_cast<std::uint64_t>(magnitude_bits(x[j]) >= bound) << (j - i);
    marks[i / 64] = word;
  }
}

std::size_t emit(const float* tile, const Marks& marks, const Target& to, Following next) {
  return emit_marked(tile, marks, to, next);
}

template <class T>
void accumulate(std::span<float> acc, const Addend& add) {
  const T* gradient = static_cast<const T*>(add.gradient);
  for (std::size_t i = 0; i < acc.size(); ++i) acc[i] += add.scale * to_float(gradient[i]);
}

template <class T>
void accumulate_mark(std::span<float> acc, const Addend& add, std::uint32_t bound, std::uint64_t* marks) {
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
