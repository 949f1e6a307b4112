// SPDX-License-Identifier: Apache-2.0
// What CudaSteps says where it cannot work. tests/gpu/cuda_optim_test.cc has its steps.
#include "oktopk/optim/cuda_step.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::cuda_step_test {
namespace {

TEST(CudaSteps, missing_library_is_named) {
  const std::string text = message_of<DeviceError>([] { const CudaSteps steps(0, "/nowhere/liboktopk_cuda.so"); });
  EXPECT_NE(text.find("/nowhere/liboktopk_cuda.so"), std::string::npos) << text;
}

TEST(CudaSteps, gpu_that_is_not_there_is_named) {
  const std::string text = message_of<DeviceError>([] { const CudaSteps steps(4096); });
  // Without kernels, the library is missing; without a driver or such a GPU, the number is named.
  EXPECT_TRUE(text.find("optimiser: GPU 4096 cannot be used") != std::string::npos ||
              text.find("cannot be loaded") != std::string::npos)
      << text;
}

}  // namespace
}  // namespace oktopk::cuda_step_test
