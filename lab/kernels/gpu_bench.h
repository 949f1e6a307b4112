// SPDX-License-Identifier: Apache-2.0
// The kernels of a GPU that `oktopk-lab kernels --device cuda` times, each beside its limit (gpu/kernels/limits.cu), on
// one problem. gpu_bench.cc has the GPU, its data and the numbers to reach, gpu_rows.cc the rows of the device's verbs,
// gpu_slots.cc those of preset slots.
//
// Times are those of the GPU's own clock, around the kernels of one verb: entries on their way to or from the host are
// not in them. Before each, the GPU reads other memory, so that its caches hold nothing of the data, and so that the
// kernels are queued before the first one may start. Each repetition takes another gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/kernels/kernel_row.h"
#include "oktopk/device/device.h"
#include "oktopk/gpu/kernels/cuda_api.h"
#include "oktopk/laws/inputs.h"

namespace oktopk {

// A CUDA device, and a context of its own whose kernels are timed.
class TimedGpu {
 public:
  // DeviceError without a GPU that can be used, UsageError for an ordinal that does not exist.
  explicit TimedGpu(int ordinal);
  ~TimedGpu();
  TimedGpu(const TimedGpu&) = delete;
  TimedGpu& operator=(const TimedGpu&) = delete;

  std::string name() const;  // as the driver has it
  const Device& device() const { return *device_; }
  const OktopkCudaApi& api() const { return api_; }
  OktopkCudaContext* context() const { return context_; }

  // DeviceError unless the function returns 0.
  void check(int status) const;
  // Seconds that the kernels of one verb take. body() calls it.
  double time(const Body& body) const;
  double limit_time(OktopkCudaLimit limit, const OktopkCudaPass& pass) const;

 private:
  std::unique_ptr<Device> device_;
  const OktopkCudaApi& api_;
  OktopkCudaContext* context_ = nullptr;
  DeviceFloats others_;  // fill the caches
};

// An accumulator's first values, and a pool of values in each type. A gradient is a window into the pool, so that many
// different ones take little memory.
class GpuData {
 public:
  GpuData(const TimedGpu& gpu, const InputInfo& input, Index n, std::uint64_t seed);

  const std::string& name() const { return name_; }
  Index n() const { return n_; }
  const float* x() const { return gpu_x_.get(); }
  // The gradient of this turn.
  const void* gradient(FloatType type, std::size_t turn) const;
  // A magnitude that about k of x reach, or of x and a gradient.
  float threshold(std::size_t k, bool with_gradient) const;

 private:
  std::string name_;
  Index n_;
  Uninitialised<float> x_;
  Uninitialised<float> pool_;
  DeviceFloats gpu_x_;
  DeviceFloats pools_[3];  // by FloatType
};

class GpuBench {
 public:
  struct Options {
    int repetitions = 21;
    std::vector<int> ranks = {1};  // of preset slots
    std::string only;              // kernels whose name contains this
  };
  // REQUIRES: gpu and data outlive it; 1 <= k <= n.
  GpuBench(const TimedGpu& gpu, const GpuData& data, std::size_t k, const Options& options, RowReport report);

  void run();

 private:
  using Sample = std::function<double()>;  // seconds of one repetition

  // Whether the row is wanted.
  bool wants(const std::string& kernel) const { return kernel.find(options_.only) != std::string::npos; }
  void report(const KernelRow& row, const TimedPair& times);
  // Times the row, kernel and limit in turns, unless it is not wanted.
  void add(const KernelRow& row, const Sample& kernel, const Sample& limit);
  OktopkCudaPass next_pass(FloatType type);  // acc = x, and the next gradient
  Sample read_limit() const;
  Sample axpy_limit(FloatType type);
  Sample copy_limit(std::size_t bytes);

  // gpu_rows.cc
  void add_selections();
  void add_passes();
  void add_entries();
  // gpu_slots.cc
  void add_slots(int P);

  const TimedGpu& gpu_;
  const GpuData& data_;
  std::size_t k_;
  Options options_;
  RowReport report_;
  DeviceFloats acc_;
  DeviceFloats other_;  // n floats more: a copy's, a result's
  std::size_t turn_ = 0;
};

}  // namespace oktopk
