// SPDX-License-Identifier: Apache-2.0
// The steps of tensor_step.h for tensors in the memory of an NVIDIA GPU: two kernels for all tensors of a group
// (gpu/kernels/optim.cu). The caller fills the table of tensors, the list of blocks and the clock, all in GPU memory.
// COST: see gpu/kernels/optim.cu. No call waits for the GPU, and a CUDA graph can hold it.
#pragma once

#include <string>

#include "oktopk/gpu/kernels/cuda_api.h"

namespace oktopk {

// One GPU. One thread at a time may use it.
class CudaSteps {
 public:
  // library: the path of liboktopk_cuda.so; empty: where the library is (CudaOptions). DeviceError when there is no
  // such library, driver or GPU, or one that the kernels are not compiled for.
  explicit CudaSteps(int ordinal, const std::string& library = {});
  ~CudaSteps();
  CudaSteps(const CudaSteps&) = delete;
  CudaSteps& operator=(const CudaSteps&) = delete;

  // Queues the step on its stream. DeviceError when the GPU refuses it.
  void run(const OktopkCudaOptim& step) const;

 private:
  const OktopkCudaApi& api_;
  int ordinal_;
  OktopkCudaContext* context_ = nullptr;
};

}  // namespace oktopk
