// SPDX-License-Identifier: Apache-2.0
// What memory allows: the plainest passes over n elements, written by hand for every level of
// vector instructions; the fastest one here counts, whatever level the kernels are limited to. A
// kernel is timed beside the pass that moves the same bytes, on as many cores.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "oktopk/device/gradient.h"

namespace oktopk {

// On one core. Each axpy gives the same bits at every level.
struct LimitPasses {
  void (*axpy_fp32)(float* y, const float* x, float a, std::size_t n);
  void (*axpy_bf16)(float* y, const Bf16* x, float a, std::size_t n);
  void (*axpy_fp16)(float* y, const Fp16* x, float a, std::size_t n);
  float (*read)(const float* x, std::size_t n);  // the sum, in any order
};
const LimitPasses& plain_limit_passes();
// All that this machine can run: limits_x86.cc, or the plain ones alone (no_limits_x86.cc).
std::span<const LimitPasses> limit_variants();

class Limits {
 public:
  // Each pass is cut into so many equal pieces. UsageError unless threads >= 1.
  explicit Limits(int threads = 1);
  ~Limits();

  // The first call of each tries all variants on its arguments, several times, and keeps the
  // fastest: make another object for another size.
  float read(std::span<const float> x);
  void copy(std::span<std::byte> to, std::span<const std::byte> from);
  // y += a * x; product and sum are rounded, as everywhere. REQUIRES: equal sizes.
  void axpy(std::span<float> y, Gradient x, float a);

 private:
  class Crew;
  template <class Body>
  void share(std::size_t size, const Body& body);
  template <class Pass>
  void run_fastest(const LimitPasses*& chosen, const Pass& pass);

  std::unique_ptr<Crew> crew_;
  const LimitPasses* read_ = nullptr;
  std::array<const LimitPasses*, 3> axpy_ = {};  // by FloatType
};

}  // namespace oktopk
