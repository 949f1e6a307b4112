// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/gpu_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lab/kernels/halves.h"
#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_library.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr std::size_t kOtherFloats = std::size_t{1} << 26;  // several times what the caches of a GPU hold
constexpr std::size_t kWindows = 32;                        // different gradients
constexpr std::size_t kWindowStep = 100004;                 // a multiple of four, so that vectors stay aligned
constexpr std::size_t kSample = std::size_t{1} << 22;
constexpr int kWarmUp = 3;

constexpr std::array<Goal, 5> kGpuGoals = {{
    {"accumulate+select fp32", "x", 1.06},
    {"exact top-k", "x", 3},
    {"slots own", "x", 1.2},
    {"slots apply", "x", 1.2},
    {"slots step P=1", "x", 1.3},
}};

DeviceFloats upload(const Device& device, std::span<const float> values) {
  DeviceFloats memory = device.allocate(values.size());
  device.write({memory.get(), values.size()}, values);
  return memory;
}

// 16-bit values travel as floats, two in each.
template <class Half, class Convert>
DeviceFloats upload_as(const Device& device, std::span<const float> values, const Convert& convert) {
  Uninitialised<float> pairs(values.size() / 2);
  auto* halves = reinterpret_cast<Half*>(pairs.data());
  std::transform(values.begin(), values.end(), halves, convert);
  return upload(device, pairs);
}

}  // namespace

const std::string kBesideUs;  // as CudaOptions::library

TimedGpu::TimedGpu(int ordinal) : device_(make_cuda_device({.ordinal = ordinal})), api_(load_cuda_api(kBesideUs)) {
  std::array<char, 512> text{};
  if (api_.open(ordinal, nullptr, &context_, text.data(), text.size()) != 0)
    fail<DeviceError>("cuda device: GPU ", ordinal, " cannot be used: ", text.data());
  others_ = device_->allocate(kOtherFloats);
}

TimedGpu::~TimedGpu() { api_.close(context_); }

std::string TimedGpu::name() const {
  OktopkCudaDescription about{};
  check(api_.describe(context_, &about));
  return about.name;
}

void TimedGpu::check(int status) const {
  if (status != 0) fail<DeviceError>("cuda device: ", api_.error_text(context_));
}

double TimedGpu::time(const Body& body) const {
  const OktopkCudaPass others{others_.get(), kOtherFloats, nullptr, 0, 0, nullptr, 0};
  check(api_.set_timing(context_, 0));
  check(api_.limit_pass(context_, oktopk_cuda_read, &others));
  check(api_.set_timing(context_, 1));
  body();
  float milliseconds = 0;
  check(api_.kernel_milliseconds(context_, &milliseconds));
  check(api_.set_timing(context_, 0));
  return 1e-3 * static_cast<double>(milliseconds);
}

double TimedGpu::limit_time(OktopkCudaLimit limit, const OktopkCudaPass& pass) const {
  return time([&] { check(api_.limit_pass(context_, limit, &pass)); });
}

GpuData::GpuData(const TimedGpu& gpu, const InputInfo& input, Index n, std::uint64_t seed)
    : name_(input.name), n_(n), x_(make_large_input(input.kind, n, 0, 0, seed)) {
  const std::uint64_t size = (std::uint64_t{n} + kWindows * kWindowStep + 3) / 4 * 4;
  require(size < (std::uint64_t{1} << 32U), "n = ", n, ": with the gradients' pool it must be below 2^32");
  pool_ = make_large_input(input.kind, static_cast<Index>(size), 0, 1, seed);
  gpu_x_ = upload(gpu.device(), x_);
  pools_[0] = upload(gpu.device(), pool_);
  pools_[1] = upload_as<Bf16>(gpu.device(), pool_, truncate_to_bf16);
  pools_[2] = upload_as<Fp16>(gpu.device(), pool_, truncate_to_fp16);
}

const void* GpuData::gradient(FloatType type, std::size_t turn) const {
  const auto* pool = reinterpret_cast<const std::byte*>(pools_[static_cast<std::size_t>(type)].get());
  return pool + turn % kWindows * kWindowStep * size_of(type);
}

float GpuData::threshold(std::size_t k, bool with_gradient) const {
  const std::size_t stride = (x_.size() + kSample - 1) / kSample;
  Uninitialised<float> sample;
  for (std::size_t i = 0; i < x_.size(); i += stride) sample.push_back(with_gradient ? x_[i] + pool_[i] : x_[i]);
  const double share = static_cast<double>(k) * static_cast<double>(sample.size()) / static_cast<double>(n_);
  return kth_magnitude(sample, std::clamp<std::size_t>(std::llround(share), 1, sample.size()));
}

GpuBench::GpuBench(const TimedGpu& gpu, const GpuData& data, std::size_t k, const Options& options, RowReport report)
    : gpu_(gpu),
      data_(data),
      k_(k),
      options_(options),
      report_(std::move(report)),
      acc_(gpu.device().allocate(data.n())),
      other_(gpu.device().allocate(data.n())) {}

void GpuBench::run() {
  add_selections();
  add_passes();
  add_entries();
  for (const int P : options_.ranks) add_slots(P);
}

void GpuBench::report(const KernelRow& row, const TimedPair& times) {
  if (!wants(row.kernel)) return;
  report_(
      row_json(row, times, {"cuda", data_.name(), static_cast<double>(data_.n()), static_cast<double>(k_)}, kGpuGoals));
}

void GpuBench::add(const KernelRow& row, const Sample& kernel, const Sample& limit) {
  if (!wants(row.kernel)) return;
  std::vector<double> kernels, limits;
  for (int i = -kWarmUp; i < options_.repetitions; ++i) {
    const double kernel_seconds = kernel(), limit_seconds = limit();
    if (i < 0) continue;
    kernels.push_back(kernel_seconds);
    limits.push_back(limit_seconds);
  }
  report(row, {summarise(kernels), summarise(limits)});
}

OktopkCudaPass GpuBench::next_pass(FloatType type) {
  gpu_.check(gpu_.api().copy(gpu_.context(), acc_.get(), data_.x(), data_.n() * sizeof(float)));
  return {acc_.get(), data_.n(), data_.gradient(type, turn_++), static_cast<std::uint32_t>(type), 1, nullptr, 0};
}

GpuBench::Sample GpuBench::read_limit() const {
  return [this] {
    return gpu_.limit_time(oktopk_cuda_read, {const_cast<float*>(data_.x()), data_.n(), nullptr, 0, 0, nullptr, 0});
  };
}

GpuBench::Sample GpuBench::axpy_limit(FloatType type) {
  return [this, type] { return gpu_.limit_time(oktopk_cuda_axpy, next_pass(type)); };
}

GpuBench::Sample GpuBench::copy_limit(std::size_t bytes) {
  return [this, floats = std::clamp<std::uint64_t>(bytes / sizeof(float), 1, data_.n())] {
    return gpu_.limit_time(oktopk_cuda_copy, {other_.get(), floats, data_.x(), 0, 0, nullptr, 0});
  };
}

}  // namespace oktopk
