// SPDX-License-Identifier: Apache-2.0
// For tests of steps of optimisers on a GPU: tensors and clocks that exist twice, on the host and on the GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/device/device.h"
#include "oktopk/gpu/kernels/cuda_api.h"
#include "oktopk/optim/tensor_kernels.h"
#include "oktopk/optim/tensor_step.h"
#include "tests/device/on_device.h"

namespace oktopk::cuda_twins {

inline constexpr std::size_t kRoom = 512;  // steps of a clock

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A tensor on the host and on the GPU.
template <class W>
struct Twin {
  using Real = RealOf<W>;
  static constexpr WeightType kType = std::is_same_v<W, float>  ? WeightType::fp32
                                      : std::is_same_v<W, Bf16> ? WeightType::bf16
                                      : std::is_same_v<W, Fp16> ? WeightType::fp16
                                                                : WeightType::fp64;

  Twin(const Device& device, std::size_t n, std::size_t offset)
      : w(n),
        g(n),
        m(n),
        v(n),
        last(n),
        arrivals(n),
        gpu_w(device, start(w), offset),
        gpu_g(device, g, offset),
        gpu_m(device, m, offset),
        gpu_v(device, v, offset),
        gpu_last(device, last),
        gpu_arrivals(device, arrivals),
        gpu_indices(device, std::vector<std::int64_t>(n)),
        gpu_steps(device, {0.0F}) {}

  static const std::vector<W>& start(std::vector<W>& w) {
    Random random(3);
    for (W& x : w) narrow(static_cast<Real>(random.uniform() - 0.5), x);
    return w;
  }

  // A mean that is zero but for a tenth, or nowhere.
  void draw(int step, bool everywhere, double factor) {
    Random random(static_cast<std::uint64_t>(step) * 1000 + w.size());
    indices.clear();
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double drawn = random.uniform();
      const bool arrives = everywhere || random.uniform() < 0.1;
      narrow(arrives ? static_cast<Real>(drawn - 0.5) : Real(0), g[i]);
      if (arrives && widen(g[i]) != 0) indices.push_back(static_cast<std::int64_t>(i));
    }
    std::vector<W> scaled = g;
    for (W& x : scaled) narrow(widen(x) * static_cast<Real>(factor), x);
    gpu_g.write(scaled);
    std::vector<std::int64_t> padded = indices;
    padded.resize(w.size());
    gpu_indices.write(padded);
  }

  TensorState host(std::uint64_t where, std::uint32_t steps, bool has_first) {
    const bool is_list = where == OKTOPK_CUDA_LISTED || where == OKTOPK_CUDA_NONZERO;
    return {.type = kType,
            .size = w.size(),
            .weights = w.data(),
            .mean = g.data(),
            .first = has_first ? m.data() : nullptr,
            .second = v.data(),
            .last = where == OKTOPK_CUDA_DENSE ? nullptr : last.data(),
            .arrivals = arrivals.data(),
            .indices = is_list ? indices.data() : nullptr,
            .count = is_list ? indices.size() : 0,
            .steps = steps};
  }

  OktopkCudaTensor gpu(std::uint64_t where, bool has_first, bool is_sgd) {
    return {.size = w.size(),
            .weights = gpu_w.data(),
            .mean = gpu_g.data(),
            .first = has_first ? gpu_m.data() : nullptr,
            .second = is_sgd ? nullptr : gpu_v.data(),
            .last = gpu_last.data(),
            .arrivals = is_sgd ? nullptr : gpu_arrivals.data(),
            .indices = gpu_indices.data(),
            .count = indices.size(),
            .steps = gpu_steps.data(),
            .caught_up = 0,
            .type = static_cast<std::uint64_t>(kType),
            .where = where};
  }

  void expect_same(const std::string& what, bool is_sgd) {
    EXPECT_TRUE(same_bits(w, gpu_w.read())) << what;
    EXPECT_TRUE(same_bits(m, gpu_m.read())) << what;
    EXPECT_TRUE(same_bits(last, gpu_last.read())) << what;
    if (is_sgd) return;
    EXPECT_TRUE(same_bits(v, gpu_v.read())) << what;
    EXPECT_TRUE(same_bits(arrivals, gpu_arrivals.read())) << what;
  }

  std::vector<W> w, g;
  std::vector<Real> m, v;
  std::vector<std::uint32_t> last, arrivals;
  std::vector<std::int64_t> indices;
  OnDevice<W> gpu_w, gpu_g;
  OnDevice<Real> gpu_m, gpu_v;
  OnDevice<std::uint32_t> gpu_last, gpu_arrivals;
  OnDevice<std::int64_t> gpu_indices;
  OnDevice<float> gpu_steps;
};

struct Rule {
  bool is_sgd = false;
  double momentum = 0.9;  // or beta1
};

// The clocks of both, and the tables.
class Clocks {
 public:
  explicit Clocks(const Device& device)
      : head(device, {OktopkCudaClock{}}),
        totals(device, start()),
        log(device, std::vector<double>(2 * kRoom)),
        first(device, std::vector<double>(kRoom)),
        second(device, std::vector<double>(kRoom)) {}

  static std::vector<double> start() {
    std::vector<double> totals(2 * kRoom);
    totals[1] = StepTotals().kept;
    return totals;
  }

  OktopkCudaOptim step(const Rule& rule, double rate, double decay) {
    const PowerView of_first = host_first.up_to(rule.momentum, kRoom - 1);
    const PowerView of_second = host_second.up_to(0.99, kRoom - 1);
    first.write(padded(of_first));
    second.write(padded(of_second));
    return {.is_sgd = rule.is_sgd,
            .nesterov = rule.is_sgd && rule.momentum > 0,
            .clock = head.data(),
            .totals = totals.data(),
            .log = log.data(),
            .room = kRoom,
            .rate = rate,
            .decoupled_decay = rule.is_sgd ? 0 : decay,
            .first_beta = rule.momentum,
            .second_beta = 0.99,
            .epsilon = 1e-8,
            .coupled_decay = rule.is_sgd ? decay : 0,
            .first_powers = first.data(),
            .first_size = of_first.size,
            .second_powers = second.data(),
            .second_size = of_second.size};
  }

  static std::vector<double> padded(const PowerView& powers) {
    std::vector<double> values(powers.one_minus, powers.one_minus + powers.size);
    values.resize(kRoom);
    return values;
  }

  IntervalClock host;
  PowerTable host_first, host_second;
  OnDevice<OktopkCudaClock> head;
  OnDevice<double> totals, log, first, second;
};

}  // namespace oktopk::cuda_twins
