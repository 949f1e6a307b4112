// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/cuda_step.h"

#include <array>

#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_library.h"

namespace oktopk {

namespace {

constexpr int kLeastCompute = 8;  // the major number of the oldest GPUs that the kernels are compiled for

}  // namespace

CudaSteps::CudaSteps(int ordinal, const std::string& library) : api_(load_cuda_api(library)), ordinal_(ordinal) {
  std::array<char, 512> text{};
  int count = 0;
  if (api_.device_count(&count, text.data(), text.size()) != 0)
    fail<DeviceError>("optimiser: GPU ", ordinal, " cannot be used: ", text.data());
  if (ordinal < 0 || ordinal >= count)
    fail<DeviceError>("optimiser: GPU ", ordinal, " cannot be used: it must be in 0..", count - 1);
  if (api_.open(ordinal, nullptr, &context_, text.data(), text.size()) != 0)
    fail<DeviceError>("optimiser: GPU ", ordinal, " cannot be used: ", text.data());
  OktopkCudaDescription about{};
  if (api_.describe(context_, &about) == 0 && about.compute_major >= kLeastCompute) return;
  api_.close(context_);
  fail<DeviceError>("optimiser: GPU ", ordinal, " has compute capability ", about.compute_major, '.',
                    about.compute_minor, ", but the kernels need ", kLeastCompute, ".0 or newer");
}

CudaSteps::~CudaSteps() { api_.close(context_); }

void CudaSteps::run(const OktopkCudaOptim& step) const {
  if (api_.optim_step(context_, &step) != 0)
    fail<DeviceError>("optimiser: the step failed on GPU ", ordinal_, ": ", api_.error_text(context_));
}

}  // namespace oktopk
