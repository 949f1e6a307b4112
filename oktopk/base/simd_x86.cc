// SPDX-License-Identifier: Apache-2.0
#include <cpuid.h>

#include "oktopk/base/simd.h"

namespace oktopk {
namespace {

// __builtin_cpu_supports has no names for these two.
bool has_f16c_and_lzcnt() {
  constexpr unsigned kF16c = 1U << 29U;
  constexpr unsigned kLzcnt = 1U << 5U;
  unsigned a = 0, b = 0, basic = 0, extended = 0, d = 0;
  return __get_cpuid(1, &a, &b, &basic, &d) != 0 && __get_cpuid(0x80000001U, &a, &b, &extended, &d) != 0 &&
         (basic & kF16c) != 0 && (extended & kLzcnt) != 0;
}

}  // namespace

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
SimdLevel detect_simd_level() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0 &&
                    __builtin_cpu_supports("fma") != 0 && has_f16c_and_lzcnt();
  if (!avx2) return SimdLevel::scalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return avx512 ? SimdLevel::avx512 : SimdLevel::avx2;
}

}  // namespace oktopk
