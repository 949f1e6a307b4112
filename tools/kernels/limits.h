// SPDX-License-Identifier: Apache-2.0
// The limits that memory sets: the plainest passes over n elements, in the widest vectors that this machine has,
// whatever level the kernels are limited to. A kernel is timed beside the pass that moves the same bytes, on as many
// cores.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "oktopk/base/gradient.h"
#include "oktopk/device/thread_pool.h"

namespace oktopk {

// The loops. They are inlined into functions for each vector width.
template <class T>
[[gnu::always_inline]] inline void axpy_loop(float* __restrict y, const T* __restrict x, float a, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * to_float(x[i]);
}

[[gnu::always_inline]] inline float read_loop(const float* x, std::size_t n) {
  constexpr std::size_t kLanes = 16, kSums = 4;  // so that an addition need not wait for the last one
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  Lanes sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kLanes * kSums <= n; i += kLanes * kSums)
    for (std::size_t j = 0; j < kSums; ++j) {
      Lanes next;
      std::memcpy(&next, x + i + j * kLanes, sizeof(next));
      sums[j] += next;
    }
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    for (const Lanes& s : sums) sum += s[lane];
  return sum;
}

// One width. Each axpy gives the same bits at every width.
struct LimitPasses {
  void (*axpy_fp32)(float* y, const float* x, float a, std::size_t n);
  void (*axpy_bf16)(float* y, const Bf16* x, float a, std::size_t n);
  void (*axpy_fp16)(float* y, const Fp16* x, float a, std::size_t n);
  float (*read)(const float* x, std::size_t n);  // the sum, in any order
};
const LimitPasses& plain_limit_passes();
// All that this machine can run, the widest last: limits_x86.cc, or the plain ones alone (no_limits_x86.cc).
std::span<const LimitPasses> limit_variants();

class Limits {
 public:
  // Each pass is cut into so many equal pieces. UsageError unless threads >= 1.
  explicit Limits(int threads = 1);

  float read(std::span<const float> x);
  void copy(std::span<std::byte> to, std::span<const std::byte> from);
  // y += a * x; product and sum are rounded, as everywhere. REQUIRES: equal sizes.
  void axpy(std::span<float> y, Gradient x, float a);

 private:
  template <class Body>
  void share(std::size_t size, const Body& body);

  ThreadPool pool_;
  const LimitPasses& widest_;
};

}  // namespace oktopk
