// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/limits.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

template <class T>
void plain_axpy(float* y, const T* x, float a, std::size_t n) {
  axpy_loop(y, x, a, n);
}
float plain_read(const float* x, std::size_t n) { return read_loop(x, n); }

std::size_t checked_threads(int threads) {
  require(threads >= 1, "threads = ", threads, ", but at least one is needed");
  return static_cast<std::size_t>(threads);
}

}  // namespace

const LimitPasses& plain_limit_passes() {
  static constexpr LimitPasses passes = {plain_axpy<float>, plain_axpy<Bf16>, plain_axpy<Fp16>, plain_read};
  return passes;
}

Limits::Limits(int threads) : pool_(checked_threads(threads)), widest_(limit_variants().back()) {}

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
    sums[piece] = widest_.read(x.data() + begin, count);
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
    if (x.type() == FloatType::fp32) return widest_.axpy_fp32(out, x.as<float>() + begin, a, count);
    if (x.type() == FloatType::bf16) return widest_.axpy_bf16(out, x.as<Bf16>() + begin, a, count);
    widest_.axpy_fp16(out, x.as<Fp16>() + begin, a, count);
  });
}

}  // namespace oktopk
