// SPDX-License-Identifier: Apache-2.0
// The loops of tensor_step.h over one block of one tensor. tensor_step.cc and tensor_kernels_avx2.cc include this file
// once each, with compiler flags of their own; the compiler makes the vectors. Everything here has internal linkage, so
// that the linker never takes the code of one level for the other. All levels give the same bits.
#pragma once

#include <bit>
#include <type_traits>

#include "oktopk/base/gradient.h"
#include "oktopk/optim/tensor_step.h"

namespace oktopk {

struct Block {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// For one type of weights; the tables below are indexed by WeightType.
struct TensorKernels {
  void (*adam[kAdamParts])(const TensorState& tensor, const AdamStep& step, Block block);  // by AdamPart
  void (*sgd)(const TensorState& tensor, const SgdStep& step, Block block);
  void (*pay_decay)(const TensorState& tensor, const StepTotals* totals, Block block);
};
// For AVX2 and FMA; on processors other than x86-64, for any.
const TensorKernels* tensor_kernels_avx2();

namespace {

// The type of the state for weights of type W.
template <class W>
using RealOf = std::conditional_t<std::is_same_v<W, double>, double, float>;

// To the type of the state, and back, rounded to the nearest, ties to even.
inline double widen(double x) { return x; }
template <class W>
float widen(W x) {
  return to_float(x);
}
inline void narrow(double x, double& to) { to = x; }
inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, Bf16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  to.bits = static_cast<std::uint16_t>(x != x ? 0x7FC0U : rounded);
}
// Below the smallest normal half, an addition aligns the bits; above, the exponent is shifted.
inline void narrow(float x, Fp16& to) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & 0x80000000U;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) ^ sign;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + 0.5F) - 0x3F000000U;
  const std::uint32_t normal = (bits - 0x38000000U + 0xFFFU + ((bits >> 13U) & 1U)) >> 13U;
  const std::uint32_t large = bits > 0x7F800000U ? 0x7E00U : 0x7C00U;
  const std::uint32_t half = bits >= 0x47800000U ? large : bits < 0x38800000U ? small : normal;
  to.bits = static_cast<std::uint16_t>(half | (sign >> 16U));
}

// The coordinates of a block that arrive: a range, or a list of indices. A list without gaps becomes a range.
struct Arrivers {
  std::size_t first = 0;
  std::size_t count = 0;
  const std::int64_t* indices = nullptr;

  Arrivers(const TensorState& tensor, Block block)
      : first(block.begin), count(block.end - block.begin), indices(tensor.indices) {
    if (indices == nullptr) return;
    indices += block.begin;
    if (indices[count - 1] - indices[0] != static_cast<std::int64_t>(count) - 1) return;
    first = static_cast<std::size_t>(indices[0]);
    indices = nullptr;
  }
  bool is_range() const { return indices == nullptr; }
  std::size_t operator[](std::size_t j) const {
    return indices == nullptr ? first + j : static_cast<std::size_t>(indices[j]);
  }
};

inline bool all_are(const std::uint32_t* x, std::size_t n, std::uint32_t value) {
  std::uint32_t difference = 0;
  for (std::size_t i = 0; i < n; ++i) difference |= x[i] ^ value;
  return difference == 0;
}
inline void fill(std::uint32_t* x, std::size_t n, std::uint32_t value) {
  for (std::size_t i = 0; i < n; ++i) x[i] = value;
}

template <class T>
void prefetch(const T* x, std::size_t i) {
  if (x != nullptr) __builtin_prefetch(x + i, 1);
}

// Moves the weight of every arriver i to arrive(i, weight, mean), and prefetches its state in time.
template <class W, class Real = RealOf<W>, class Arrive>
void for_arrivers(const TensorState& t, const Arrivers& who, const Arrive& arrive) {
  constexpr std::size_t kAhead = 16;  // so that memory has answered by then
  W* w = static_cast<W*>(t.weights);
  const W* g = static_cast<const W*>(t.mean);
  for (std::size_t j = 0; j < who.count; ++j) {
    const std::size_t i = who[j];
    const std::size_t soon = who[j + kAhead < who.count ? j + kAhead : who.count - 1];
    prefetch(w, soon);
    prefetch(g, soon);
    prefetch(static_cast<Real*>(t.first), soon);
    prefetch(static_cast<Real*>(t.second), soon);
    prefetch(t.last, soon);
    prefetch(t.arrivals, soon);
    narrow(arrive(i, widen(w[i]), widen(g[i])), w[i]);
  }
}

// A dense step over coordinates begin .. begin + n - 1, or half of it: the moments, or the move with given roots.
template <class W, AdamPart part = AdamPart::all, class Real = RealOf<W>>
void adam_dense(const AdamRule<Real> rule, const TensorState& t, std::size_t begin, std::size_t n) {
  W* __restrict w = static_cast<W*>(t.weights) + begin;
  const W* __restrict g = static_cast<const W*>(t.mean) + begin;
  Real* __restrict m = static_cast<Real*>(t.first) + begin;
  Real* __restrict v = static_cast<Real*>(t.second) + begin;
  // Only a move has roots.
  const Real* __restrict roots = part == AdamPart::move ? static_cast<const Real*>(t.roots) + begin : nullptr;
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (part != AdamPart::move) adam_moments(rule, widen(g[i]), m[i], v[i]);
    if constexpr (part == AdamPart::all) narrow(adam_moved(rule, widen(w[i]), m[i], std::sqrt(v[i])), w[i]);
    if constexpr (part == AdamPart::move) narrow(adam_moved(rule, widen(w[i]), m[i], roots[i]), w[i]);
  }
}

template <class W, AdamPart part>
void adam_part(const TensorState& t, const AdamStep& step, Block block) {
  adam_dense<W, part>({step, t.steps, false}, t, block.begin, block.end - block.begin);
}

// True, with counts and rule updated: every coordinate of the range arrived in the last step, too, and all of them
// with second moments of one age, so this is a dense step.
template <class Real>
bool adam_is_dense(AdamRule<Real>& rule, const TensorState& t, const Arrivers& who) {
  const std::uint32_t now = rule.group.clock.now;
  if (!who.is_range() || !all_are(t.last + who.first, who.count, now - 1)) return false;
  std::uint32_t* arrivals = t.arrivals + who.first;
  if (!all_are(arrivals, who.count, arrivals[0])) return false;
  const std::uint32_t more = aged(arrivals[0], 1, rule.steps);
  fill(arrivals, who.count, more);
  fill(t.last + who.first, who.count, now);
  rule.root2 = static_cast<Real>(std::sqrt(one_minus_power(rule.group.second, more)));
  return true;
}

template <class W, class Real = RealOf<W>>
void adam_block(const TensorState& t, const AdamStep& step, Block block) {
  AdamRule<Real> rule{step, t.steps, t.indices != nullptr};
  if (t.last == nullptr) return adam_dense<W>(rule, t, block.begin, block.end - block.begin);
  const Arrivers who(t, block);
  if (adam_is_dense(rule, t, who)) return adam_dense<W>(rule, t, who.first, who.count);
  Real* m = static_cast<Real*>(t.first);
  Real* v = static_cast<Real*>(t.second);
  for_arrivers<W>(t, who, [&](std::size_t i, Real weight, Real mean) {
    return adam_arrive<Real>(rule, weight, mean, t.caught_up, {m[i], v[i], t.last[i], t.arrivals[i]});
  });
}

template <class W, class Real = RealOf<W>>
void sgd_dense(const SgdRule<Real> rule, const TensorState& t, std::size_t begin, std::size_t n) {
  W* __restrict w = static_cast<W*>(t.weights) + begin;
  const W* __restrict g = static_cast<const W*>(t.mean) + begin;
  Real* __restrict v = t.first == nullptr ? nullptr : static_cast<Real*>(t.first) + begin;
  const bool decays = rule.group.weight_decay != 0;
  const auto move = [&](std::size_t i, auto momentum) {
    const Real weight = widen(w[i]);
    const Real gradient = decays ? std::fma(weight, rule.weight_decay, widen(g[i])) : widen(g[i]);
    narrow(std::fma(momentum(gradient), rule.minus_rate, weight), w[i]);
  };
  if (v == nullptr)
    for (std::size_t i = 0; i < n; ++i) move(i, [](Real gradient) { return gradient; });
  else
    for (std::size_t i = 0; i < n; ++i) move(i, [&](Real gradient) { return sgd_once(rule, gradient, v[i]); });
}

template <class W, class Real = RealOf<W>>
void sgd_block(const TensorState& t, const SgdStep& step, Block block) {
  const SgdRule<Real> rule{step, t.indices != nullptr};
  if (t.last == nullptr) return sgd_dense<W>(rule, t, block.begin, block.end - block.begin);
  const Arrivers who(t, block);
  const std::uint32_t now = step.clock.now;
  if (who.is_range() && all_are(t.last + who.first, who.count, now - 1)) {
    fill(t.last + who.first, who.count, now);
    return sgd_dense<W>(rule, t, who.first, who.count);
  }
  Real* v = static_cast<Real*>(t.first);
  for_arrivers<W>(t, who, [&](std::size_t i, Real weight, Real mean) {
    const std::uint32_t last = t.last[i];
    t.last[i] = now;
    return sgd_arrive(rule, weight, mean, last, v == nullptr ? nullptr : v + i);
  });
}

// Pays the weight decay since the last arrival, up to step t.end.
template <class W, class Real = RealOf<W>>
void pay_block(const TensorState& t, const StepTotals* totals, Block block) {
  W* w = static_cast<W*>(t.weights);
  for (std::size_t i = block.begin; i < block.end; ++i) {
    const std::uint32_t begin = t.last[i] > t.caught_up ? t.last[i] : t.caught_up;
    const auto kept = static_cast<Real>(kept_between(totals, begin, t.end));
    narrow(widen(w[i]) * kept, w[i]);
  }
}

template <class W>
constexpr TensorKernels kKernelsOf = {
    {adam_block<W>, adam_part<W, AdamPart::moments>, adam_part<W, AdamPart::move>}, sgd_block<W>, pay_block<W>};
// NOLINTNEXTLINE(misc-definitions-in-headers): internal linkage is the point here.
[[maybe_unused]] constexpr TensorKernels kTensorKernels[kWeightTypes] = {kKernelsOf<float>, kKernelsOf<Bf16>,
                                                                         kKernelsOf<Fp16>, kKernelsOf<double>};

}  // namespace
}  // namespace oktopk
