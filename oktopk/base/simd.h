// SPDX-License-Identifier: Apache-2.0
// The vector instructions that kernels use. The level is chosen once from what the machine has. Every level gives the
// same bits, so the choice changes only the time; therefore it is a setting of the process, not a parameter of every
// call (docs/decisions/0012). Tests and benchmarks limit it to compare levels. Levels can differ if the processor
// treats subnormal numbers as zero, which a program that was linked with -ffast-math turns on.
//
// Each kernel (oktopk/cpu) that uses vector instructions is marked OKTOPK_AVX2 or OKTOPK_AVX512, so that the build
// stays portable. The files no_simd.cc are for processors other than x86-64.
#pragma once

#include <span>
#include <string_view>

namespace oktopk {

enum class SimdLevel { scalar, avx2, avx512 };

std::string_view to_string(SimdLevel level);
// UsageError lists the names that exist.
SimdLevel find_simd_level(std::string_view name);

// All levels that this machine can run, the slowest first.
std::span<const SimdLevel> simd_levels();
// The best of them: simd_x86.cc asks the processor, no_simd.cc answers scalar.
SimdLevel detect_simd_level();

// The level in use: the machine's best, unless limited.
SimdLevel simd_level();

// While it lives, no thread uses a higher level. UsageError when the machine lacks it.
class SimdLimit {
 public:
  explicit SimdLimit(SimdLevel level);
  ~SimdLimit();
  SimdLimit(const SimdLimit&) = delete;
  SimdLimit& operator=(const SimdLimit&) = delete;

 private:
  SimdLevel before_;
};

}  // namespace oktopk

// Instructions that each level may assume. FMA is left out on purpose, though every machine of these levels has it: a
// fused multiply-add rounds once where the scalar code rounds twice. Code that calls std::fma itself
// (optim/tensor_kernels.h) gets the same bits at every level.
#define OKTOPK_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,f16c")))
#define OKTOPK_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt,f16c")))
