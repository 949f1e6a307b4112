// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk-lab kernels --device cuda` for the verbs of the CUDA device.
#include <algorithm>

#include "lab/kernels/gpu_bench.h"

namespace oktopk {
namespace {

constexpr const char* kTypes[] = {"fp32", "bf16", "fp16"};  // by FloatType

}  // namespace

// Every repetition starts from the same accumulator, and adds another gradient.
void GpuBench::add_selections() {
  const double n = data_.n();
  const OktopkCudaApi& api = gpu_.api();
  OktopkCudaEntries out{};
  const auto select = [&](OktopkCudaPass pass, float threshold, std::uint64_t most) {
    const std::uint32_t bound = std::max(magnitude_bits(threshold), 1U);
    return gpu_.time([&] { gpu_.check(api.accumulate_select(gpu_.context(), &pass, bound, most, &out)); });
  };
  const OktopkCudaPass scan{const_cast<float*>(data_.x()), data_.n(), nullptr, 0, 0, nullptr, 0};
  const float at_k = data_.threshold(k_, false), fused_at_k = data_.threshold(k_, true);
  // As the sample of the exact selector gives it.
  const std::size_t more = std::min<std::size_t>(data_.n(), k_ + k_ / 10 + 1);
  const float below_k = data_.threshold(more, false), fused_below_k = data_.threshold(more, true);
  const double read_bytes = 4 * n, fused_bytes = 12 * n;
  select(scan, at_k, Device::kNoLimit);
  const std::vector<Index> cleared(out.idx, out.idx + out.count);

  add(
      {.kernel = "threshold scan", .bytes = read_bytes, .limit = "read"},
      [&] { return select(scan, at_k, Device::kNoLimit); }, read_limit());
  for (const FloatType type : {FloatType::fp32, FloatType::bf16, FloatType::fp16}) {
    const double bytes = (8.0 + static_cast<double>(size_of(type))) * n;
    const std::string name = std::string("accumulate+select ") + kTypes[static_cast<std::size_t>(type)];
    add(
        {.kernel = name, .bytes = bytes, .limit = "axpy"},
        [&] { return select(next_pass(type), fused_at_k, Device::kNoLimit); }, axpy_limit(type));
  }
  const auto clearing = [&] {
    OktopkCudaPass pass = next_pass(FloatType::fp32);
    pass.cleared = cleared.data();
    pass.cleared_count = cleared.size();
    return select(pass, fused_at_k, Device::kNoLimit);
  };
  add({.kernel = "accumulate+select, clearing k", .bytes = fused_bytes, .limit = "axpy"}, clearing,
      axpy_limit(FloatType::fp32));
  add(
      {.kernel = "exact top-k", .bytes = read_bytes, .limit = "read"}, [&] { return select(scan, below_k, k_); },
      read_limit());
  add(
      {.kernel = "exact top-k, fused", .bytes = fused_bytes, .limit = "axpy"},
      [&] { return select(next_pass(FloatType::fp32), fused_below_k, k_); }, axpy_limit(FloatType::fp32));
}

void GpuBench::add_passes() {
  const double n = data_.n();
  const OktopkCudaApi& api = gpu_.api();
  OktopkCudaContext* context = gpu_.context();
  const std::uint64_t size = data_.n();
  // A verb that reads x.
  const auto add_read = [&](const char* name, const auto& verb) {
    add(
        {.kernel = name, .bytes = 4 * n, .limit = "read"}, [&] { return gpu_.time([&] { gpu_.check(verb()); }); },
        read_limit());
  };
  for (const FloatType type : {FloatType::fp32, FloatType::bf16, FloatType::fp16}) {
    const double bytes = (8.0 + static_cast<double>(size_of(type))) * n;
    add(
        {.kernel = std::string("accumulate ") + kTypes[static_cast<std::size_t>(type)],
         .bytes = bytes,
         .limit = "axpy"},
        [&] {
          const OktopkCudaPass pass = next_pass(type);
          return gpu_.time([&] { gpu_.check(api.accumulate(context, &pass)); });
        },
        axpy_limit(type));
  }
  std::uint64_t first = 0;
  add_read("finite check", [&] { return api.first_nonfinite(context, data_.x(), 0, size, &first); });
  std::vector<std::uint64_t> bins(kMagnitudeBins);
  add_read("histogram", [&] { return api.magnitude_histogram(context, data_.x(), size, bins.data()); });
  const std::size_t lanes = (size + (1U << 16U) - 1) / (1U << 16U) * 16;  // as cuda_api.h has them
  std::vector<double> sums(lanes), squares(lanes);
  add_read("moments", [&] { return api.moments(context, data_.x(), size, sums.data(), squares.data()); });
  add(
      {.kernel = "multiply", .bytes = 8 * n, .limit = "copy"},
      [&] { return gpu_.time([&] { gpu_.check(api.multiply(context, acc_.get(), size, -1)); }); },
      copy_limit(4 * data_.n()));
}

// Verbs at entries: the k places that were selected. Places on their way to the GPU are not timed.
void GpuBench::add_entries() {
  const OktopkCudaApi& api = gpu_.api();
  OktopkCudaContext* context = gpu_.context();
  const std::uint64_t stride = std::max<std::uint64_t>(data_.n() / k_, 4), clusters = (data_.n() - 1) / stride + 1;
  std::vector<std::uint32_t> sample(4 * clusters);
  std::vector<Index> idx;
  for (std::uint64_t i = 0; i < data_.n() && idx.size() < k_; i += std::max<std::uint64_t>(data_.n() / k_, 1))
    idx.push_back(static_cast<Index>(i));
  std::vector<float> val(idx.size(), 1.0F), taken(idx.size());
  const std::uint32_t take = magnitude_bits(data_.threshold(k_, false));
  const auto add_verb = [&](const char* name, double count, double bytes, const auto& verb) {
    add(
        {.kernel = name, .bytes = bytes * count, .entries = count, .limit = "copy"},
        [&] { return gpu_.time([&] { gpu_.check(verb()); }); }, copy_limit(static_cast<std::size_t>(bytes * count)));
  };
  const auto count = static_cast<double>(idx.size());
  add_verb("sample", static_cast<double>(sample.size()), sizeof(float), [&] {
    const OktopkCudaPass pass{acc_.get(), data_.n(), data_.gradient(FloatType::fp32, turn_++), 0, 1, nullptr, 0};
    return api.sample_magnitudes(context, &pass, 0, stride, clusters, sample.data());
  });
  add_verb("add_at", count, 8, [&] { return api.add_at(context, acc_.get(), 0, idx.data(), val.data(), idx.size()); });
  add_verb("clear_at", count, 4, [&] { return api.clear_at(context, acc_.get(), 0, idx.data(), idx.size()); });
  add_verb("add_take", count, 8, [&] {
    return api.add_take(context, acc_.get(), 0, idx.data(), val.data(), idx.size(), take, taken.data(), nullptr);
  });
}

}  // namespace oktopk
