// SPDX-License-Identifier: Apache-2.0
// The CUDA device beyond DeviceConformance (tests/device/cpu_test.cc), which has it as a row: streams, whole steps, and
// its errors. Without a GPU the tests say that they were skipped; `make test-gpu` runs them where there is one.
#include <gtest/gtest.h>

#include <cstdint>

#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_library.h"
#include "tests/device/conformance.h"
#include "tests/device/same_steps.h"
#include "tests/support/message.h"

namespace oktopk {
namespace {

// Why there is no CUDA device here; empty: there is one.
std::string missing() {
  try {
    make_cuda_device();
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
    cuda_ = make_cuda_device();
  }

  std::shared_ptr<const Device> cuda_;
};

// The two streams are those that every CUDA program has: cudaStreamPerThread and cudaStreamLegacy.
TEST_F(Cuda, use_stream_queues_behind_the_stream_before) {
  std::vector<float> x = make_values(1U << 22U, 9);
  const OnDevice<float> gpu(*cuda_, x);
  const auto cpu = make_cpu_device();
  for (std::uintptr_t turn = 0; turn < 20; ++turn) {
    cuda_->use_stream(reinterpret_cast<void*>(turn % 2 == 0 ? std::uintptr_t{2} : std::uintptr_t{1}));
    const float factor = turn % 2 == 0 ? 0.3F : 2.9F;
    cpu->multiply(x, factor);
    cuda_->multiply(gpu.span(), factor);
    cpu->accumulate({x, x, 0.25F});
    cuda_->accumulate({gpu.span(), gpu.gradient(), 0.25F});
  }
  EXPECT_EQ(bits_of(x), bits_of(gpu.read()));
}

TEST_F(Cuda, presets_and_rules_give_the_bits_of_the_cpu_device) {
  for (const int P : {1, 2, 3, 4}) expect_same_presets(P, [] { return make_cuda_device(); });
}

TEST_F(Cuda, memory_that_does_not_suffice_is_named) {
  const std::string message = message_of<DeviceError>([&] { cuda_->allocate(std::size_t{1} << 40); });
  EXPECT_NE(message.find("for n = 1099511627776 floats: GPU 0"), std::string::npos) << message;
  EXPECT_NO_THROW(cuda_->allocate(1000));
}

TEST_F(Cuda, an_ordinal_that_does_not_exist_is_refused) {
  EXPECT_NE(message_of<UsageError>([] { make_cuda_device({.ordinal = 1000}); }).find("ordinal = 1000"),
            std::string::npos);
}

// With or without the library, a driver or a GPU: a DeviceError says what is missing.
TEST(CudaDevice, the_lack_of_a_gpu_is_a_device_error) {
  const std::string why = missing();
  EXPECT_TRUE(why.empty() || why.starts_with("cuda device: ")) << why;
}

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
