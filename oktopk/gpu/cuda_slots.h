// SPDX-License-Identifier: Apache-2.0
// The kernels of preset `slots` on the GPU of a CUDA device (gpu/kernels/slots.cu): the three parts of a step, between
// which the caller moves messages. Nothing here waits for the GPU except state() and set_state(). All pointers are GPU
// memory; all work goes to the stream given.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "oktopk/device/device.h"
#include "oktopk/gpu/kernels/cuda_api.h"

namespace oktopk {

class Gpu;

class CudaSlots {
 public:
  // tag: equal on all ranks. UsageError unless the device is a CUDA device.
  CudaSlots(const Device& device, std::uint64_t n, int P, std::uint32_t tag);
  ~CudaSlots();
  CudaSlots(const CudaSlots&) = delete;
  CudaSlots& operator=(const CudaSlots&) = delete;

  // UsageError unless the gradient has n values in the memory of this GPU.
  void check(const Gradient& gradient) const;
  // Accumulation::cleared is not used: entries that leave, leave at once. `messages`: P, one behind the other.
  void send(const Accumulation& in, std::uint64_t k, std::uint32_t* messages, void* stream);
  void own(float* memory, const std::uint32_t* arrived, std::uint64_t k, std::uint32_t* share, void* stream);
  // out[i] = the sum / divisor, zeros included, in this type; NaN everywhere after a step that is void.
  struct Result {
    void* out;
    FloatType type;
    float divisor;
  };
  void apply(const std::uint32_t* shares, const std::uint32_t* sent, float* acc, std::uint64_t k, const Result& result,
             void* stream);

  OktopkCudaSlotsState state() const;
  void set_state(const OktopkCudaSlotsState& state);

 private:
  void use(void* stream) const;

  std::shared_ptr<const Gpu> gpu_;
  std::uint64_t n_;
  OktopkCudaSlots* slots_ = nullptr;
};

}  // namespace oktopk
