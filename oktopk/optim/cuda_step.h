// SPDX-License-Identifier: Apache-2.0
// The steps of tensor_step.h for tensors in the memory of an NVIDIA GPU: two kernels for all tensors of a group
// (gpu/kernels/optim.cu). The caller fills the table of tensors, the list of blocks and the clock, all in GPU memory.
// COST: see gpu/kernels/optim.cu. No call waits for the GPU, and a CUDA graph can hold it.
#pragma once

#include "oktopk/gpu/cuda_gpu.h"

namespace oktopk {

// One GPU. One thread at a time may use it.
class CudaSteps {
 public:
  // DeviceError when the kernels' library, the driver or any GPU is missing, or the kernels are not compiled for this
  // GPU. UsageError when no GPU has this number.
  explicit CudaSteps(int ordinal) : gpu_({.ordinal = ordinal}) {}

  // Queues the step on its stream. DeviceError when the GPU refuses it.
  void run(const OktopkCudaOptim& step) const {
    gpu_.call(&OktopkCudaApi::optim_step, "a step of an optimiser", &step);
  }

 private:
  Gpu gpu_;
};

}  // namespace oktopk
