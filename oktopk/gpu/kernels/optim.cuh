// SPDX-License-Identifier: Apache-2.0
// The update rules of optim/adam_rule.h and sgd_rule.h as a thread of the GPU uses them: the types of weights, vectors
// of four, and the constants of a step from the clock in GPU memory. Included by optim.cu only.
#pragma once

#include <type_traits>

#include "oktopk/gpu/kernels/context.cuh"
#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/sgd_rule.h"

namespace oktopk::cuda {

using Tensor = OktopkCudaTensor;
using Group = OktopkCudaOptim;

// ---- Numbers ----

template <class W>
using RealOf = std::conditional_t<std::is_same_v<W, double>, double, float>;

__device__ inline double widen(double x) { return x; }
template <class W>
__device__ inline float widen(W x) {
  return to_float(x);
}

__device__ inline void narrow(double x, double& to) { to = x; }
__device__ inline void narrow(float x, float& to) { to = x; }
// NaNs as on the host.
__device__ inline void narrow(float x, __nv_bfloat16& to) {
  to = x == x ? __float2bfloat16_rn(x) : __ushort_as_bfloat16(0x7fc0);
}
__device__ inline void narrow(float x, __half& to) {
  const auto sign = static_cast<unsigned short>(__float_as_uint(x) >> 16 & 0x8000U);
  to = x == x ? __float2half_rn(x) : __ushort_as_half(static_cast<unsigned short>(0x7e00U | sign));
}

// A pointer out of a table, whose memory the compiler cannot know: it is the GPU's. REQUIRES: not null.
template <class T>
__device__ inline T* global(T* x) {
  __builtin_assume(__isGlobal(x));
  return x;
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// kVector: all four elements exist, and their address is a multiple of their size. Otherwise those before `end`, one by
// one.
template <bool kVector, class T>
__device__ inline Four<T> load(const T* x, std::uint64_t at, std::uint64_t end) {
  if constexpr (kVector) {
    return *reinterpret_cast<const Four<T>*>(global(x + at));
  } else {
    Four<T> v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.x[i] = at + i < end ? *global(x + at + i) : T(0);
    return v;
  }
}

template <bool kVector, class T>
__device__ inline void store(T* x, std::uint64_t at, std::uint64_t end, const Four<T>& v) {
  if constexpr (kVector) {
    *reinterpret_cast<Four<T>*>(global(x + at)) = v;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at + i < end) *global(x + at + i) = v.x[i];
  }
}

template <class T>
__device__ inline bool fits_vectors(const void* x) {
  return reinterpret_cast<std::uintptr_t>(x) % sizeof(Four<T>) == 0;
}

// ---- The rules ----

// The state of one coordinate.
template <class Real>
struct Coordinate {
  Real first = 0;
  Real second = 0;
  std::uint32_t last = 0;
  std::uint32_t arrivals = 0;
};

__device__ inline ClockView view(const Group& group) {
  const OktopkCudaClock& clock = *group.clock;
  return {clock.now, clock.rate, clock.kept, reinterpret_cast<const StepTotals*>(group.totals)};
}

__device__ inline PowerView powers(const double* one_minus, std::uint64_t size) {
  return {one_minus, static_cast<std::uint32_t>(size)};
}

__device__ inline bool is_sparse(const Tensor& t) {
  return t.where == OKTOPK_CUDA_LISTED || t.where == OKTOPK_CUDA_NONZERO;
}

template <class W>
struct Adam {
  using Weight = W;
  using Real = RealOf<W>;

  __device__ static AdamRule<Real> rule_of(const Group& group, const Tensor& t) {
    const PowerView first = powers(group.first_powers, group.first_size);
    const PowerView second = powers(group.second_powers, group.second_size);
    const auto steps = static_cast<std::uint32_t>(*t.steps);
    const double bias2 = one_minus_power(second, steps);
    return {.group = {group.first_beta, group.second_beta, group.epsilon, view(group), first, second},
            .steps = steps,
            .silence_follows = is_sparse(t),
            .bias1 = one_minus_power(first, steps),
            .bias2 = bias2,
            .root2 = static_cast<Real>(sqrt(bias2))};
  }

  __device__ Adam(const Group& group, const Tensor& t)
      : rule(rule_of(group, t)), caught_up(static_cast<std::uint32_t>(t.caught_up)) {}

  __device__ Real dense(Real weight, Real gradient, Real& m, Real& v) const {
    adam_moments(rule, gradient, m, v);
    return adam_moved(rule, weight, m, std::sqrt(v));
  }
  __device__ Real arrive(Real weight, Real total, Coordinate<Real>& at) const {
    return adam_arrive<Real>(rule, weight, total, caught_up, {at.first, at.second, at.last, at.arrivals});
  }

  AdamRule<Real> rule;
  std::uint32_t caught_up;
};

template <class W>
struct Sgd {
  using Weight = W;
  using Real = RealOf<W>;

  __device__ Sgd(const Group& group, const Tensor& t)
      : rule{.group = {group.first_beta, group.coupled_decay, group.nesterov != 0, view(group),
                       powers(group.first_powers, group.first_size)},
             .silence_follows = is_sparse(t)},
        has_velocity(t.first != nullptr) {}

  __device__ Real dense(Real weight, Real gradient, Real& velocity, Real& /*second*/) const {
    if (rule.group.weight_decay != 0) gradient = std::fma(weight, rule.weight_decay, gradient);
    const Real move = has_velocity ? sgd_once(rule, gradient, velocity) : gradient;
    return std::fma(move, rule.minus_rate, weight);
  }
  __device__ Real arrive(Real weight, Real total, Coordinate<Real>& at) const {
    const std::uint32_t last = at.last;
    at.last = rule.group.clock.now;
    if (!has_velocity) return sgd_arrive<Real>(rule, weight, total, last, nullptr);
    return sgd_arrive<Real>(rule, weight, total, last, &at.first);
  }

  SgdRule<Real> rule;
  bool has_velocity;
};

}  // namespace oktopk::cuda
