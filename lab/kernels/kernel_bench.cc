// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/kernel_bench.h"

#include <array>
#include <utility>

#include "lab/kernels/halves.h"
#include "oktopk/base/simd.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kCold = 1 << 25;                      // bytes: more than caches hold
constexpr std::size_t kOthers = std::size_t{1} << 25;  // floats that fill the caches

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
    fp16[i] = truncate_to_fp16(gradient[i]);
  }
}

KernelBench::KernelBench(const KernelData& data, std::size_t k, const Options& options, RowReport report)
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
  report_(row_json(row, times,
                   {to_string(simd_level()), data_.name, static_cast<double>(data_.n), static_cast<double>(k_)},
                   kGoals));
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
