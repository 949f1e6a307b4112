// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_bench.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "oktopk/base/simd.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kCold = 1 << 25;                      // bytes: more than caches hold
constexpr std::size_t kOthers = std::size_t{1} << 25;  // floats that fill the caches

// The numbers to reach, for n >= 2^24: caches and branch predictors know few entries by heart.
struct Goal {
  std::string_view kernel;  // or the beginning of its name, up to a verb
  std::string_view unit;    // x (of the limit), ns (per entry) or bits (per entry)
  double most;
  double density = 0;  // 0: any; otherwise 1%, or 0.1% and less
};
constexpr std::array<Goal, 12> kGoals = {{
    {"threshold scan", "x", 1.10},
    {"fused accumulate+select fp32", "x", 1.05},
    {"exact top-k", "x", 1.35, 0.01},
    {"exact top-k", "x", 1.15, 0.001},
    {"reduce P=2", "ns", 7, 0.01},
    {"reduce P=4", "ns", 4.6, 0.01},
    {"reduce P=8", "ns", 3.3, 0.01},
    {"reduce P=16", "ns", 2.5, 0.01},
    {"index bit_packed", "bits", 10.1, 0.01},
    {"index bit_packed", "ns", 0.2, 0.01},
    {"index elias_fano", "bits", 8.7, 0.01},
    {"index elias_fano", "ns", 1.5, 0.01},
}};

bool applies(const Goal& goal, const std::string& kernel, double n, double k) {
  const std::string_view verb = std::string_view(kernel).substr(std::min(goal.kernel.size(), kernel.size()));
  const bool is_named = kernel.starts_with(goal.kernel) && (verb.empty() || verb == " encode" || verb == " decode");
  const double found = k / n;
  const bool is_as_dense = goal.density == 0 || std::fabs(found - goal.density) < 0.01 * goal.density ||
                           (goal.density == 0.001 && found < goal.density);
  return is_named && is_as_dense && n >= 1U << 24U;
}

// Towards zero; a number beyond half's range becomes zero or the largest. For data, not for arithmetic.
Fp16 to_fp16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  constexpr std::uint32_t kLeast = 113U << 23U, kRebase = 112U << 23U;
  const std::uint32_t half = magnitude < kLeast ? 0 : std::min((magnitude - kRebase) >> 13U, 0x7BFFU);
  return {static_cast<std::uint16_t>(half | ((bits >> 16U) & 0x8000U))};
}

Bf16 truncate_to_bf16(float v) { return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16U)}; }

}  // namespace

KernelData::KernelData(const InputInfo& input, Index count, std::uint64_t seed)
    : name(input.name),
      n(count),
      x(make_large_input(input.kind, n, 0, 0, seed)),
      gradient(make_large_input(input.kind, n, 0, 1, seed)),
      bf16(n),
      fp16(n) {
  for (std::size_t i = 0; i < n; ++i) {
    gradient[i] -= x[i];
    bf16[i] = truncate_to_bf16(gradient[i]);
    fp16[i] = to_fp16(gradient[i]);
  }
}

KernelBench::KernelBench(const KernelData& data, std::size_t k, const Options& options, Report report)
    : data_(data),
      k_(k),
      options_(options),
      report_(std::move(report)),
      device_(make_cpu_device({.threads = options.threads})),
      limits_(options.threads) {
  threshold_ = kth_magnitude(data.x, k);
  device_->select_at_least(data.x, 0, threshold_, selection_);
  keep_largest(selection_, k);
  Uninitialised<float> acc = data.x;
  device_->accumulate_select({acc, data.gradient}, threshold_, next_);
}

void KernelBench::run() {
  add_passes();
  add_selectors();
  if (options_.baselines) add_baselines();
  add_sparse();
  add_codings();
  add_frames();
}

void KernelBench::add(const KernelRow& row, const Body& kernel, const Body& prepare) {
  if (row.kernel.find(options_.only) == std::string::npos) return;
  // A pass over more than caches hold should find nothing of it there, as in a training step.
  const Body from_cold = [&] {
    if (prepare) prepare();
    others_.resize(kOthers, 1.0F);
    sink_ += limits_.read(others_);
  };
  const TimedPair times =
      time_in_turns(options_.repetitions, kernel, make_limit(row), row.bytes >= kCold ? from_cold : prepare);
  const double n = data_.n, k = static_cast<double>(k_);
  const double seconds = times.kernel.median;
  const double ns = row.entries > 0 ? 1e9 * seconds / row.entries : 0;
  nlohmann::json reach = nlohmann::json::array();
  for (const Goal& goal : kGoals) {
    if (!applies(goal, row.kernel, n, k)) continue;
    const double value = goal.unit == "x" ? times.ratio() : goal.unit == "ns" ? ns : row.bits;
    reach.push_back({{"unit", goal.unit}, {"most", goal.most}, {"value", value}, {"met", value <= goal.most}});
  }
  report_({{"kernel", row.kernel},
           {"simd", to_string(simd_level())},
           {"data", data_.name},
           {"n", n},
           {"k", k},
           {"time", seconds},
           {"time_min", times.kernel.least},
           {"time_mad", times.kernel.deviation},
           {"bandwidth", seconds > 0 ? row.bytes / seconds : 0},
           {"ns_per_entry", ns},
           {"bits_per_entry", row.bits},
           {"limit", row.limit},
           {"limit_time", times.limit.median},
           {"limit_time_min", times.limit.least},
           {"limit_time_mad", times.limit.deviation},
           {"ratio", times.ratio()},
           {"ratio_min", times.least_ratio()},
           {"reach", reach}});
}

// A read of n floats, a copy of the row's bytes, or an axpy, whose gradient has two bytes per element where the row's
// has.
Body KernelBench::make_limit(const KernelRow& row) {
  if (row.limit == "read") return [this] { sink_ += limits_.read(data_.x); };
  if (row.limit == "copy") {
    const auto bytes = static_cast<std::size_t>(row.bytes);
    return [this, from = Bytes(bytes, std::byte{1}), to = Bytes(bytes, std::byte{2})]() mutable {
      limits_.copy(to, from);
    };
  }
  const Gradient gradient = row.bytes < 12.0 * data_.n ? Gradient(data_.bf16) : Gradient(data_.gradient);
  return
      [this, gradient, y = data_.x, sign = 1.0F]() mutable { limits_.axpy(y, gradient, std::exchange(sign, -sign)); };
}

}  // namespace oktopk
