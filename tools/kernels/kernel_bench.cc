// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_bench.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <sstream>
#include <utility>

#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kCold = 1 << 25;                      // bytes: more than caches hold
constexpr std::size_t kOthers = std::size_t{1} << 25;  // floats that fill the caches

// The numbers to reach, for n >= 2^24: caches and branch predictors know few entries by heart. density 0: any;
// otherwise 1%, or 0.1% and less.
struct Goal {
  std::string_view kernel;  // or the beginning of its name, up to a verb
  Reach reach;
  double density = 0;

  bool applies_to(const KernelRow& row) const {
    const std::string_view verb = std::string_view(row.kernel).substr(std::min(kernel.size(), row.kernel.size()));
    const bool is_named = row.kernel.starts_with(kernel) && (verb.empty() || verb == " encode" || verb == " decode");
    const double found = row.k / row.n;
    const bool is_as_dense =
        density == 0 || std::fabs(found - density) < 0.01 * density || (density == 0.001 && found < density);
    return is_named && is_as_dense && row.n >= 1U << 24U;
  }
};
constexpr std::array<Goal, 12> kGoals = {{
    {"threshold scan", {Measure::ratio, 1.10}},
    {"fused accumulate+select fp32", {Measure::ratio, 1.05}},
    {"exact top-k", {Measure::ratio, 1.35}, 0.01},
    {"exact top-k", {Measure::ratio, 1.15}, 0.001},
    {"reduce P=2", {Measure::nanoseconds, 7}, 0.01},
    {"reduce P=4", {Measure::nanoseconds, 4.6}, 0.01},
    {"reduce P=8", {Measure::nanoseconds, 3.3}, 0.01},
    {"reduce P=16", {Measure::nanoseconds, 2.5}, 0.01},
    {"index bit_packed", {Measure::bits, 10.1}, 0.01},
    {"index bit_packed", {Measure::nanoseconds, 0.2}, 0.01},
    {"index elias_fano", {Measure::bits, 8.7}, 0.01},
    {"index elias_fano", {Measure::nanoseconds, 1.5}, 0.01},
}};

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

std::string_view unit_of(Measure measure) {
  constexpr std::string_view kUnits[] = {"x", "ns", "bits"};
  return kUnits[static_cast<std::size_t>(measure)];
}

double KernelRow::value(Measure measure) const {
  const double values[] = {times.ratio(), nanoseconds(), bits};
  return values[static_cast<std::size_t>(measure)];
}

std::string KernelRow::verdict() const {
  if (reach.empty()) return {};
  std::ostringstream text;
  for (const Reach& r : reach) text << (&r == reach.data() ? "" : ", ") << r.most << ' ' << unit_of(r.measure);
  const bool all = std::all_of(reach.begin(), reach.end(), [&](const Reach& r) { return meets(r); });
  text << (all ? " ok" : " over");
  return text.str();
}

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

void KernelBench::add(KernelRow row, const Body& kernel, const Body& prepare) {
  if (row.kernel.find(options_.only) == std::string::npos) return;
  row.data = data_.name;
  row.simd = simd_level();
  row.n = static_cast<double>(data_.n);
  row.k = static_cast<double>(k_);
  for (const Goal& goal : kGoals)
    if (goal.applies_to(row)) row.reach.push_back(goal.reach);
  // A pass over more than caches hold should find nothing of it there, as in a training step.
  const Body from_cold = [&] {
    if (prepare) prepare();
    others_.resize(kOthers, 1.0F);
    sink_ += limits_.read(others_);
  };
  row.times = time_in_turns(options_.repetitions, kernel, make_limit(row), row.bytes >= kCold ? from_cold : prepare);
  report_(row);
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
  const Gradient gradient = row.bytes < 12 * row.n ? Gradient(data_.bf16) : Gradient(data_.gradient);
  return
      [this, gradient, y = data_.x, sign = 1.0F]() mutable { limits_.axpy(y, gradient, std::exchange(sign, -sign)); };
}

}  // namespace oktopk
