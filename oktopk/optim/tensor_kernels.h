// SPDX-License-Identifier: Apache-2.0
// The loops of tensor_step.h over one block of one tensor. Each level (tensor_kernels_scalar.cc,
// tensor_kernels_avx2.cc) includes this file once, with compiler flags of its own, and makes a
// table of it: everything here has internal linkage, so that no level's code stands in for
// another's. The compiler makes the vectors; all levels give the same bits.
#pragma once

#include <array>
#include <bit>

#include "oktopk/base/half.h"
#include "oktopk/optim/tensor_step.h"

namespace oktopk {

struct Block {
  std::size_t begin = 0;
  std::size_t end = 0;
};
struct TensorKernels {
  using Adam = void (*)(const TensorState& tensor, const AdamStep& step, Block block);
  using Sgd = void (*)(const TensorState& tensor, const SgdStep& step, Block block);
  using Pay = void (*)(const TensorState& tensor, const StepTotals* totals, Block block);
  std::array<Adam, kWeightTypes> adam;
  std::array<Adam, kWeightTypes> adam_moments;
  std::array<Adam, kWeightTypes> adam_move;
  std::array<Sgd, kWeightTypes> sgd;
  std::array<Pay, kWeightTypes> pay_decay;
};
const TensorKernels& tensor_kernels_scalar();
const TensorKernels& tensor_kernels_avx2();

namespace {

template <class Weight>
struct Types {
  using Real = float;
};
template <>
struct Types<double> {
  using Real = double;
};

// To the type of the state, and back: rounded to the nearest, ties to even.
template <class W>
typename Types<W>::Real widen(W x) {
  if constexpr (sizeof(W) == sizeof(double))
    return x;
  else
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

// The coordinates of a block that arrive: a range, or a list of indices. A list without gaps is a
// range.
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
  // The coordinate some places after j: far enough that memory has answered by then.
  std::size_t soon(std::size_t j) const {
    constexpr std::size_t kAhead = 16;
    return (*this)[j + kAhead < count ? j + kAhead : count - 1];
  }
};

template <class... T>
void prefetch(const T*... x) {
  (__builtin_prefetch(x, 1), ...);
}

inline bool all_are(const std::uint32_t* x, std::size_t n, std::uint32_t value) {
  std::uint32_t difference = 0;
  for (std::size_t i = 0; i < n; ++i) difference |= x[i] ^ value;
  return difference == 0;
}
inline void fill(std::uint32_t* x, std::size_t n, std::uint32_t value) {
  for (std::size_t i = 0; i < n; ++i) x[i] = value;
}

// Adam

template <class W, class Real = typename Types<W>::Real>
void adam_dense(const AdamRule<Real> rule, const TensorState& t, std::size_t begin, std::size_t n) {
  W* __restrict w = static_cast<W*>(t.weights) + begin;
  const W* __restrict g = static_cast<const W*>(t.mean) + begin;
  Real* __restrict m = static_cast<Real*>(t.first) + begin;
  Real* __restrict v = static_cast<Real*>(t.second) + begin;
  for (std::size_t i = 0; i < n; ++i) {
    adam_moments(rule, widen(g[i]), m[i], v[i]);
    narrow(adam_moved(rule, widen(w[i]), m[i], std::sqrt(v[i])), w[i]);
  }
}

template <class W, class Real = typename Types<W>::Real>
void adam_dense_moments(const TensorState& t, const AdamStep& step, Block block) {
  const AdamRule<Real> rule = adam_rule<Real>(step, t.steps, false);
  const W* __restrict g = static_cast<const W*>(t.mean);
  Real* __restrict m = static_cast<Real*>(t.first);
  Real* __restrict v = static_cast<Real*>(t.second);
  for (std::size_t i = block.begin; i < block.end; ++i) adam_moments(rule, widen(g[i]), m[i], v[i]);
}

template <class W, class Real = typename Types<W>::Real>
void adam_dense_move(const TensorState& t, const AdamStep& step, Block block) {
  const AdamRule<Real> rule = adam_rule<Real>(step, t.steps, false);
  W* __restrict w = static_cast<W*>(t.weights);
  const Real* __restrict m = static_cast<const Real*>(t.first);
  const Real* __restrict root = static_cast<const Real*>(t.roots);
  for (std::size_t i = block.begin; i < block.end; ++i) narrow(adam_moved(rule, widen(w[i]), m[i], root[i]), w[i]);
}

// Nobody in the range was silent, and all arrived equally often: a dense step.
template <class Real>
bool adam_is_dense(AdamRule<Real>& rule, const TensorState& t, const Arrivers& who) {
  const std::uint32_t now = rule.group.clock.now;
  if (!who.is_range() || !all_are(t.last + who.first, who.count, now - 1)) return false;
  if (rule.group.ages_by_arrivals) {
    std::uint32_t* arrivals = t.arrivals + who.first;
    if (!all_are(arrivals, who.count, arrivals[0])) return false;
    const std::uint32_t more = arrivals[0] < rule.steps ? arrivals[0] + 1 : rule.steps;
    fill(arrivals, who.count, more);
    rule.root2 = static_cast<Real>(std::sqrt(one_minus_power(rule.group.second, more)));
  }
  fill(t.last + who.first, who.count, now);
  return true;
}

template <class W, class Real = typename Types<W>::Real>
void adam_block(const TensorState& t, const AdamStep& step, Block block) {
  AdamRule<Real> rule = adam_rule<Real>(step, t.steps, t.indices != nullptr);
  if (t.last == nullptr) return adam_dense<W>(rule, t, block.begin, block.end - block.begin);
  const Arrivers who(t, block);
  if (adam_is_dense(rule, t, who)) return adam_dense<W>(rule, t, who.first, who.count);
  W* w = static_cast<W*>(t.weights);
  const W* g = static_cast<const W*>(t.mean);
  Real* m = static_cast<Real*>(t.first);
  Real* v = static_cast<Real*>(t.second);
  for (std::size_t j = 0; j < who.count; ++j) {
    const std::size_t i = who[j];
    const std::size_t soon = who.soon(j);
    prefetch(w + soon, g + soon, m + soon, v + soon, t.last + soon);
    if (t.arrivals != nullptr) prefetch(t.arrivals + soon);
    const AdamCoordinate<Real> at{m[i], v[i], t.last[i], t.arrivals ? t.arrivals + i : nullptr};
    narrow(adam_arrive(rule, widen(w[i]), widen(g[i]), t.caught_up, at), w[i]);
  }
}

// SGD

template <class W, class Real = typename Types<W>::Real>
void sgd_dense(const SgdRule<Real> rule, const TensorState& t, std::size_t begin, std::size_t n) {
  W* __restrict w = static_cast<W*>(t.weights) + begin;
  const W* __restrict g = static_cast<const W*>(t.mean) + begin;
  Real* __restrict v = t.first == nullptr ? nullptr : static_cast<Real*>(t.first) + begin;
  const bool decays = rule.group.weight_decay != 0;
  const auto pull = [&](std::size_t i, Real weight) {
    return decays ? std::fma(weight, rule.weight_decay, widen(g[i])) : widen(g[i]);
  };
  if (v == nullptr) {
    for (std::size_t i = 0; i < n; ++i) {
      const Real weight = widen(w[i]);
      narrow(std::fma(pull(i, weight), rule.minus_rate, weight), w[i]);
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Real weight = widen(w[i]);
    narrow(std::fma(sgd_once(rule, pull(i, weight), v[i]), rule.minus_rate, weight), w[i]);
  }
}

template <class W, class Real = typename Types<W>::Real>
void sgd_block(const TensorState& t, const SgdStep& step, Block block) {
  const SgdRule<Real> rule = sgd_rule<Real>(step, t.indices != nullptr);
  if (t.last == nullptr) return sgd_dense<W>(rule, t, block.begin, block.end - block.begin);
  const Arrivers who(t, block);
  const std::uint32_t now = step.clock.now;
  if (who.is_range() && all_are(t.last + who.first, who.count, now - 1)) {
    fill(t.last + who.first, who.count, now);
    return sgd_dense<W>(rule, t, who.first, who.count);
  }
  W* w = static_cast<W*>(t.weights);
  const W* g = static_cast<const W*>(t.mean);
  Real* v = static_cast<Real*>(t.first);
  for (std::size_t j = 0; j < who.count; ++j) {
    const std::size_t i = who[j];
    const std::size_t soon = who.soon(j);
    prefetch(w + soon, g + soon, t.last + soon);
    if (v != nullptr) prefetch(v + soon);
    Real* velocity = v == nullptr ? nullptr : v + i;
    narrow(sgd_arrive(rule, widen(w[i]), widen(g[i]), t.last[i], velocity), w[i]);
    t.last[i] = now;
  }
}

// Weight decay that is owed

template <class W, class Real = typename Types<W>::Real>
void pay_block(const TensorState& t, const StepTotals* totals, Block block) {
  W* w = static_cast<W*>(t.weights);
  for (std::size_t i = block.begin; i < block.end; ++i) {
    const std::uint32_t begin = t.last[i] > t.caught_up ? t.last[i] : t.caught_up;
    const auto kept = static_cast<Real>(kept_between(totals, begin, t.end));
    narrow(widen(w[i]) * kept, w[i]);
  }
}

inline const TensorKernels& tensor_kernels() {
  static constexpr TensorKernels kKernels = {
      {adam_block<float>, adam_block<Bf16>, adam_block<Fp16>, adam_block<double>},
      {adam_dense_moments<float>, adam_dense_moments<Bf16>, adam_dense_moments<Fp16>, adam_dense_moments<double>},
      {adam_dense_move<float>, adam_dense_move<Bf16>, adam_dense_move<Fp16>, adam_dense_move<double>},
      {sgd_block<float>, sgd_block<Bf16>, sgd_block<Fp16>, sgd_block<double>},
      {pay_block<float>, pay_block<Bf16>, pay_block<Fp16>, pay_block<double>}};
  return kKernels;
}

}  // namespace
}  // namespace oktopk
