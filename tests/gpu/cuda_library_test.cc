// SPDX-License-Identifier: Apache-2.0
#include "oktopk/gpu/cuda_library.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk {
namespace {

TEST(CudaLibrary, a_path_that_does_not_exist_is_named) {
  const std::string message = message_of<DeviceError>([] { load_cuda_api("/no/such/kernels.so"); });
  EXPECT_NE(message.find("/no/such/kernels.so"), std::string::npos) << message;
  EXPECT_NE(message.find("nvcc"), std::string::npos) << message;
}

TEST(CudaLibrary, a_library_that_is_not_ours_is_refused) {
  const std::string message = message_of<DeviceError>([] { load_cuda_api("libm.so.6"); });
  EXPECT_EQ(message, "cuda device: libm.so.6 has no function oktopk_cuda_api");
}

}  // namespace
}  // namespace oktopk
