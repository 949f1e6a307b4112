// SPDX-License-Identifier: Apache-2.0
// Device "cuda": what is of length n lies in the memory of an NVIDIA GPU, and the kernels of liboktopk_cuda.so
// (gpu/kernels/cuda_api.h) walk over it. Entries come to the host through pinned memory. A gradient may lie on the GPU
// or on the host, from where it is copied. All other memory of the host is left to a CPU device.
//
// COST: each verb one pass at the GPU's memory bandwidth, 8 B per entry over the bus, one or two waits for the stream.
#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/device/cpu_parts.h"
#include "oktopk/device/device.h"
#include "oktopk/gpu/cuda_gpu.h"

namespace oktopk {
namespace {

constexpr std::size_t kCluster = 4;
constexpr std::uint32_t kBeyondEnd = 0xffffffffU;  // in a sample

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options)
      : gpu_(std::make_shared<const Gpu>(options)), host_(make_cpu_device(options.cpu)) {}
  std::string_view name() const override { return "cuda"; }
  const std::shared_ptr<const Gpu>& gpu() const { return gpu_; }

  void use_stream(void* stream) const override { gpu_->call(&OktopkCudaApi::set_stream, "use_stream", stream); }

  DeviceFloats allocate(std::size_t n) const override {
    return {gpu_->allocate(n), [gpu = gpu_](float* x) { gpu->release(x); }};
  }

  void read(Gradient x, void* host) const override { copy(host, x.as<void>(), x.size() * size_of(x.type())); }

  void write(std::span<float> x, std::span<const float> host) const override {
    if (!is_ours(x.data())) return host_->write(x, host);
    if (host.empty())
      gpu_->call(&OktopkCudaApi::zero, "write", static_cast<void*>(x.data()), x.size_bytes());
    else
      copy(x.data(), host.data(), x.size_bytes());
  }

  std::size_t first_nonfinite(Gradient x) const override {
    if (!is_ours(x.as<void>())) return host_->first_nonfinite(x);
    std::uint64_t first = 0;
    gpu_->call(&OktopkCudaApi::first_nonfinite, "first_nonfinite", x.as<void>(), type_of(x), std::uint64_t{x.size()},
               &first);
    return first;
  }

  void accumulate(const Accumulation& in) const override {
    if (!is_ours(in.acc.data())) return host_->accumulate(on_host(in));
    if (in.gradient.empty()) return clear_at(in.acc, 0, in.cleared);
    const OktopkCudaPass pass = pass_of(in);
    gpu_->call(&OktopkCudaApi::accumulate, "accumulate", &pass);
  }

  void multiply(std::span<float> x, float factor) const override {
    if (!is_ours(x.data())) return host_->multiply(x, factor);
    gpu_->call(&OktopkCudaApi::multiply, "multiply", x.data(), std::uint64_t{x.size()}, factor);
  }

  std::size_t accumulate_select(const Accumulation& in, float threshold, SparseVector& out,
                                std::size_t most) const override {
    if (!is_ours(in.acc.data())) return host_->accumulate_select(on_host(in), threshold, out, most);
    out.clear();
    return append_selected(in, 0, threshold, most, out);
  }

  void select_at_least(std::span<const float> x, Index base, float threshold, SparseVector& out) const override {
    if (!is_ours(x.data())) return host_->select_at_least(x, base, threshold, out);
    // Nothing is added or cleared, so nothing is written.
    append_selected({.acc = {const_cast<float*>(x.data()), x.size()}}, base, threshold, kNoLimit, out);
  }

  void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const override {
    if (!is_ours(x.data())) return host_->magnitude_histogram(x, bins);
    gpu_->call(&OktopkCudaApi::magnitude_histogram, "magnitude_histogram", x.data(), std::uint64_t{x.size()},
               bins.data());
  }

  void sample_magnitudes(const Accumulation& in, std::size_t offset, std::size_t stride,
                         Uninitialised<std::uint32_t>& out) const override {
    if (!is_ours(in.acc.data())) return host_->sample_magnitudes(on_host(in), offset, stride, out);
    const std::size_t n = in.acc.size();
    const std::uint64_t clusters = offset < n ? (n - offset - 1) / stride + 1 : 0;
    out.resize(clusters * kCluster);
    const OktopkCudaPass pass = pass_of(in);
    gpu_->call(&OktopkCudaApi::sample_magnitudes, "sample_magnitudes", &pass, std::uint64_t{offset},
               std::uint64_t{stride}, clusters, out.data());
    out.erase(std::remove(out.begin(), out.end(), kBeyondEnd), out.end());
  }

  Moments moments(std::span<const float> x) const override {
    if (!is_ours(x.data())) return host_->moments(x);
    const std::size_t lanes = (x.size() + kMomentBlock - 1) / kMomentBlock * MomentLanes::kLanes;
    sums_.resize(2 * lanes);
    gpu_->call(&OktopkCudaApi::moments, "moments", x.data(), std::uint64_t{x.size()}, sums_.data(),
               sums_.data() + lanes);
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
      sum += sums_[i];
      squares += sums_[lanes + i];
    }
    return moments_of(sum, squares, x.size());
  }

  void add_at(std::span<float> x, Index base, CooView v) const override {
    if (!is_ours(x.data())) return host_->add_at(x, base, v);
    gpu_->call(&OktopkCudaApi::add_at, "add_at", x.data(), base, v.idx.data(), v.val.data(), std::uint64_t{v.size()});
  }

  void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const override {
    if (!is_ours(x.data())) return host_->clear_at(x, base, idx);
    gpu_->call(&OktopkCudaApi::clear_at, "clear_at", x.data(), base, idx.data(), std::uint64_t{idx.size()});
  }

  void add_take(std::span<float> x, Index base, CooView v, const TakeBounds& bounds, SparseVector& taken,
                SparseVector& reported, float* before) const override {
    if (!is_ours(x.data())) return host_->add_take(x, base, v, bounds, taken, reported, before);
    taken.clear();
    reported.clear();
    floats_.resize(v.idx.size());
    gpu_->call(&OktopkCudaApi::add_take, "add_take", x.data(), base, v.idx.data(),
               v.val.empty() ? nullptr : v.val.data(), std::uint64_t{v.idx.size()}, bounds.take, floats_.data(),
               before);
    for (std::size_t i = 0; i < floats_.size(); ++i) {
      if (magnitude_bits(floats_[i]) >= bounds.take)
        taken.push_back(v.idx[i], floats_[i]);
      else if (magnitude_bits(floats_[i]) >= bounds.report)
        reported.push_back(v.idx[i], floats_[i]);
    }
  }

 private:
  static std::uint32_t type_of(Gradient x) { return static_cast<std::uint32_t>(x.type()); }

  bool is_ours(const void* memory) const { return gpu_->has(memory); }

  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) gpu_->call(&OktopkCudaApi::copy, "copy", to, from, std::uint64_t{bytes});
  }

  // For an accumulator on this GPU.
  OktopkCudaPass pass_of(const Accumulation& in) const {
    OktopkCudaPass pass{.acc = in.acc.data(),
                        .n = in.acc.size(),
                        .gradient = in.gradient.empty() ? nullptr : in.gradient.as<void>(),
                        .gradient_type = type_of(in.gradient),
                        .scale = in.scale,
                        .cleared = in.cleared.data(),
                        .cleared_count = in.cleared.size()};
    if (pass.gradient != nullptr && !is_ours(pass.gradient)) {
      const void* host = pass.gradient;
      gpu_->call(&OktopkCudaApi::stage, "stage", host, std::uint64_t{in.gradient.size() * size_of(in.gradient.type())},
                 &pass.gradient);
    }
    return pass;
  }

  // For an accumulator in host memory.
  Accumulation on_host(Accumulation in) const {
    if (in.gradient.empty() || !is_ours(in.gradient.as<void>())) return in;
    const Gradient from = in.gradient;
    floats_.resize(from.size());  // room for any type
    read(from, floats_.data());
    in.gradient = Gradient(floats_.data(), from.size(), from.type());
    return in;
  }

  std::size_t append_selected(const Accumulation& in, Index base, float threshold, std::size_t most,
                              SparseVector& out) const {
    const OktopkCudaPass pass = pass_of(in);
    OktopkCudaEntries entries{};
    const std::uint32_t bound = std::max(magnitude_bits(threshold), 1U);
    gpu_->call(&OktopkCudaApi::accumulate_select, "accumulate_select", &pass, bound, std::uint64_t{most}, &entries);
    const std::size_t before = out.size();
    out.resize(before + entries.count);
    std::transform(entries.idx, entries.idx + entries.count, out.idx.data() + before,
                   [base](Index i) { return i + base; });
    std::copy_n(entries.val, entries.count, out.val.data() + before);
    return entries.reached;
  }

  std::shared_ptr<const Gpu> gpu_;
  std::unique_ptr<Device> host_;  // for memory of the host
  mutable Uninitialised<float> floats_;
  mutable std::vector<double> sums_;
};

}  // namespace

std::shared_ptr<const Gpu> gpu_of(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  require(cuda != nullptr, "the device is ", device.name(), ", but steps on the GPU need device cuda");
  return cuda->gpu();
}

std::unique_ptr<Device> make_cuda_device(const CudaOptions& options) { return std::make_unique<CudaDevice>(options); }

}  // namespace oktopk
