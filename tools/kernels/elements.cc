// SPDX-License-Identifier: Apache-2.0
// Passes over all n elements: scan, fused accumulate and select, exact top-k, checks, selectors,
// and what the standard library would do.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "tools/kernels/kernel_bench.h"

namespace oktopk {
namespace {

// +1 and -1 in turns: what is added twice is gone.
float flip(float& sign) { return std::exchange(sign, -sign); }

}  // namespace

void KernelBench::scan() {
  const std::string name = "threshold scan";
  if (!wants(name)) return;
  SparseVector out;
  KernelRow row{.kernel = name, .bytes = 4.0 * data_.n, .limit = "read"};
  if (is_large()) row.reach = {{Measure::ratio, 1.10}};
  time(
      row,
      [&] {
        out.clear();
        device_->select_at_least(data_.x, 0, threshold_, out);
      },
      [&] { sink_ += limits_.read(data_.x); });
}

void KernelBench::fused(const std::string& type, Gradient gradient, std::vector<Reach> reach) {
  const double bytes = (8.0 + static_cast<double>(size_of(gradient.type()))) * data_.n;
  const auto measure = [&](KernelRow row, std::span<const Index> cleared) {
    if (!wants(row.kernel)) return;
    Uninitialised<float> acc = data_.x, y = data_.x;
    float sign = 1, limit_sign = 1;
    SparseVector out;
    row.bytes = bytes;
    row.limit = "axpy";
    time(
        std::move(row),
        [&] {
          device_->accumulate_select({acc, gradient, flip(sign), cleared}, threshold_, out);
        },
        [&] { limits_.axpy(y, gradient, flip(limit_sign)); });
  };
  measure({.kernel = "fused accumulate+select " + type, .reach = std::move(reach)}, {});
  if (gradient.type() == FloatType::fp32) measure({.kernel = "fused, clearing k"}, selection_.idx);
}

void KernelBench::exact() {
  SparseVector out;
  if (const std::string name = "exact top-k"; wants(name)) {
    Uninitialised<float> acc = data_.x;
    KernelRow row{.kernel = name, .bytes = 4.0 * data_.n, .limit = "read"};
    const double density = static_cast<double>(k_) / data_.n;
    if (is_one_percent()) row.reach = {{Measure::ratio, 1.35}};
    if (is_large() && density < 0.00101) row.reach = {{Measure::ratio, 1.15}};
    time(
        row, [&] { select_exact(*device_, {.acc = acc}, k_, out); }, [&] { sink_ += limits_.read(data_.x); });
  }
  if (const std::string name = "exact top-k, fused"; wants(name)) {
    Uninitialised<float> acc = data_.x, y = data_.x;
    float sign = 1, limit_sign = 1;
    time(
        {.kernel = name, .bytes = 12.0 * data_.n, .limit = "axpy"},
        [&] {
          select_exact(*device_, {acc, data_.gradient, flip(sign)}, k_, out);
        },
        [&] { limits_.axpy(y, data_.gradient, flip(limit_sign)); });
  }
}

void KernelBench::passes() {
  if (const std::string name = "finite check"; wants(name))
    time(
        {.kernel = name, .bytes = 4.0 * data_.n, .limit = "read"},
        [&] { sink_ += static_cast<float>(device_->first_nonfinite(data_.x)); },
        [&] { sink_ += limits_.read(data_.x); });
  if (const std::string name = "accumulate"; wants(name)) {
    Uninitialised<float> acc = data_.x, y = data_.x;
    float sign = 1, limit_sign = 1;
    time(
        {.kernel = name, .bytes = 12.0 * data_.n, .limit = "axpy"},
        [&] {
          device_->accumulate({acc, data_.gradient, flip(sign)});
        },
        [&] { limits_.axpy(y, data_.gradient, flip(limit_sign)); });
  }
}

// On a stream with error feedback: two gradients come and go, what was selected is cleared.
void KernelBench::selector(const SelectorInfo& info) {
  const std::string name = "selector " + std::string(info.name);
  if (!wants(name)) return;
  constexpr int kSettle = 12;  // steps until a threshold has found its place
  const auto selector = make_selector(info.kind, {.P = 4});
  Uninitialised<float> acc(data_.n, 0.0F), y = data_.x;
  SparseVector out;
  int turn = 0;
  float limit_sign = 1;
  const auto step = [&] {
    const auto& gradient = turn % 2 == 0 ? data_.x : data_.gradient;
    const float sign = turn % 4 < 2 ? 1.0F : -1.0F;
    ++turn;
    selector->select(*device_, {acc, gradient, sign}, k_, out);
  };
  const auto clear = [&] { device_->clear_at(acc, 0, out.idx); };
  for (int i = 0; i < kSettle; ++i) {
    step();
    clear();
  }
  time(
      {.kernel = name, .bytes = 12.0 * data_.n, .limit = "axpy"}, step,
      [&] { limits_.axpy(y, data_.gradient, flip(limit_sign)); }, clear);
}

void KernelBench::baselines() {
  const auto read = [&] { sink_ += limits_.read(data_.x); };
  SparseVector out;
  const auto collect = [&](float threshold) {
    out.clear();
    for (std::size_t i = 0; i < data_.x.size(); ++i)
      if (std::fabs(data_.x[i]) >= threshold) out.push_back(static_cast<Index>(i), data_.x[i]);
  };
  if (const std::string name = "std::nth_element"; wants(name)) {
    Uninitialised<float> magnitudes(data_.n);
    time(
        {.kernel = name, .bytes = 4.0 * data_.n, .limit = "read"},
        [&] {
          std::transform(data_.x.begin(), data_.x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
          const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
          std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
          collect(*kth);
        },
        read);
  }
  if (const std::string name = "std scan, push_back"; wants(name))
    time(
        {.kernel = name, .bytes = 4.0 * data_.n, .limit = "read"}, [&] { collect(threshold_); }, read);
}

}  // namespace oktopk
