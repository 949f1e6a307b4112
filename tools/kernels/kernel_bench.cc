// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_bench.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// Towards zero; what half cannot hold becomes zero or the largest. For data, not for arithmetic.
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
  scan();
  fused("fp32", data_.gradient, is_large() ? std::vector<Reach>{{Measure::ratio, 1.05}} : std::vector<Reach>{});
  fused("bf16", data_.bf16, {});
  fused("fp16", data_.fp16, {});
  exact();
  passes();
  for (const SelectorInfo& info : selectors()) selector(info);
  if (options_.baselines) baselines();
  const auto reduce_within = [&](int P, double nanoseconds) {
    const bool asked = nanoseconds > 0 && is_one_percent();
    reduce(P, asked ? std::vector<Reach>{{Measure::nanoseconds, nanoseconds}} : std::vector<Reach>{});
  };
  reduce_within(2, 7);
  reduce_within(4, 4.6);
  reduce_within(8, 3.3);
  reduce_within(16, 2.5);
  reduce_within(64, 0);
  trim();
  dense_mean();
  for (std::size_t i = 0; i < index_codings().size(); ++i)
    index_coding(static_cast<IndexCoding>(i), index_codings()[i]);
  for (std::size_t i = 0; i < value_codings().size(); ++i)
    value_coding(static_cast<ValueCoding>(i), value_codings()[i]);
  for (const char* codec : {"coo32+fp32", "bit_packed+fp32", "elias_fano+fp32", "elias_fano+bf16", "elias_fano+log8"})
    frame(codec);
}

bool KernelBench::wants(const std::string& kernel) const { return kernel.find(options_.only) != std::string::npos; }

bool KernelBench::is_one_percent() const {
  const double density = static_cast<double>(k_) / data_.n;
  return is_large() && std::fabs(density - 0.01) < 1e-4;
}

void KernelBench::time(KernelRow row, const Body& kernel, const Body& limit, const Body& prepare) {
  row.data = data_.name;
  row.simd = simd_level();
  row.n = data_.n;
  row.k = static_cast<double>(k_);
  // A pass over more than caches hold should find nothing of it there, as in a training step.
  const bool is_cold = row.bytes >= kCold;
  row.times =
      time_in_turns(options_.repetitions, kernel, limit, is_cold ? Body([&] { empty_caches(prepare); }) : prepare);
  report_(row);
}

void KernelBench::empty_caches(const Body& prepare) {
  if (prepare) prepare();
  others_.resize(kOthers, 1.0F);
  sink_ += limits_.read(others_);
}

void KernelBench::time_beside_copy(KernelRow row, const Body& kernel, const Body& prepare) {
  row.limit = "copy";
  const auto bytes = static_cast<std::size_t>(row.bytes);
  const Bytes from(bytes, std::byte{1});
  Bytes to(bytes, std::byte{2});
  time(
      std::move(row), kernel, [&] { limits_.copy(to, from); }, prepare);
}

}  // namespace oktopk
