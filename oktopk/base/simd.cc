// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/simd.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

constexpr std::array<SimdLevel, 3> kLevels = {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512};
constexpr EnumNames<SimdLevel, 3> kNames("SIMD level", "scalar", "avx2", "avx512");

std::atomic<SimdLevel>& level_in_use() {
  static std::atomic<SimdLevel> level = simd_levels().back();
  return level;
}

}  // namespace

std::string_view to_string(SimdLevel level) { return kNames[level]; }

SimdLevel find_simd_level(std::string_view name) { return kNames.find(name); }

std::span<const SimdLevel> simd_levels() {
  static const std::size_t best = static_cast<std::size_t>(detect_simd_level());
  return std::span(kLevels).first(best + 1);
}

SimdLevel simd_level() { return level_in_use().load(std::memory_order_relaxed); }

SimdLimit::SimdLimit(SimdLevel level) : before_(simd_level()) {
  const SimdLevel best = simd_levels().back();
  require(level <= best, "SIMD level ", to_string(level), ": this machine goes up to ", to_string(best));
  level_in_use().store(level, std::memory_order_relaxed);
}

SimdLimit::~SimdLimit() { level_in_use().store(before_, std::memory_order_relaxed); }

}  // namespace oktopk
