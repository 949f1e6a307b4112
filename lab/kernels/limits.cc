// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/limits.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// The compiler makes a copy of each loop per vector width, and the loader takes the widest that the machine has.
OKTOPK_EVERY_WIDTH void axpy_fp32(float* __restrict y, const float* __restrict x, float a, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

OKTOPK_EVERY_WIDTH void axpy_bf16(float* __restrict y, const Bf16* __restrict x, float a, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * std::bit_cast<float>(std::uint32_t{x[i].bits} << 16U);
}

OKTOPK_EVERY_WIDTH float read_all(const float* x, std::size_t n) {
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

std::size_t checked_threads(int threads) {
  require(threads >= 1, "threads = ", threads, ", but at least one is needed");
  return static_cast<std::size_t>(threads);
}

}  // namespace

Limits::Limits(int threads) : pool_(checked_threads(threads)) {}

template <class Body>
void Limits::share(std::size_t size, const Body& body) {
  const std::size_t width = (size / pool_.size() + 63) / 64 * 64;
  pool_.run(pool_.size(), [&](std::size_t piece) {
    const std::size_t begin = std::min(size, piece * width);
    const std::size_t end = piece + 1 == pool_.size() ? size : std::min(size, begin + width);
    body(piece, begin, end - begin);
  });
}

float Limits::read(std::span<const float> x) {
  std::vector<float> sums(pool_.size());
  share(x.size(), [&](std::size_t piece, std::size_t begin, std::size_t count) {
    sums[piece] = read_all(x.data() + begin, count);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

void Limits::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  share(from.size(), [&](std::size_t, std::size_t begin, std::size_t count) {
    if (count > 0) std::memcpy(to.data() + begin, from.data() + begin, count);
  });
}

void Limits::axpy(std::span<float> y, Gradient x, float a) {
  share(y.size(), [&](std::size_t, std::size_t begin, std::size_t count) {
    float* const out = y.data() + begin;
    if (x.type() == FloatType::fp32) return axpy_fp32(out, x.as<float>() + begin, a, count);
    axpy_bf16(out, x.as<Bf16>() + begin, a, count);
  });
}

}  // namespace oktopk
