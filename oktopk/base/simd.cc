// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/simd.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

struct LevelName {
  SimdLevel level;
  std::string_view name;
};
constexpr std::array<LevelName, 3> kLevels = {
    {{SimdLevel::scalar, "scalar"}, {SimdLevel::avx2, "avx2"}, {SimdLevel::avx512, "avx512"}}};
constexpr std::array<SimdLevel, 3> kOrder = {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512};

SimdLevel best() {
  static const SimdLevel level = detect_simd_level();
  return level;
}

std::atomic<SimdLevel>& level_in_use() {
  static std::atomic<SimdLevel> level = best();
  return level;
}

}  // namespace

std::string_view to_string(SimdLevel level) { return kLevels[static_cast<std::size_t>(level)].name; }

SimdLevel find_simd_level(std::string_view name) { return find_row(kLevels, "SIMD level", name).level; }

std::span<const SimdLevel> simd_levels() { return std::span(kOrder).first(static_cast<std::size_t>(best()) + 1); }

SimdLevel simd_level() { return level_in_use().load(std::memory_order_relaxed); }

void limit_simd_level(SimdLevel level) {
  require(level <= best(), "SIMD level ", to_string(level), ": this machine goes up to ", to_string(best()));
  level_in_use().store(level, std::memory_order_relaxed);
}

}  // namespace oktopk
