// SPDX-License-Identifier: Apache-2.0
// Questions to a GPU. Without one only the errors are tested, and the other test says that it was skipped.
#include "oktopk/comm/nccl/calls.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/device/device.h"
#include "tests/support/message.h"

namespace oktopk::gpu_calls_test {
namespace {

// Why there is no GPU here; empty: there is one.
std::string missing_gpu() {
  const std::string text = message_of<DeviceError>([] { make_gpu_calls(0, ""); });
  return text == "accepted" ? "" : text;
}

TEST(GpuCalls, missing_library_is_named) {
  const std::string text = message_of<DeviceError>([] { make_gpu_calls(0, "/no/such/kernels.so"); });
  EXPECT_NE(text.find("/no/such/kernels.so"), std::string::npos) << text;
}

TEST(GpuCallsOnGpu, ordinal_must_exist) {
  if (const std::string why = missing_gpu(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(message_of([] { make_gpu_calls(-1, ""); }).find("ordinal = -1, but it must be in 0.."), 0U);
  EXPECT_EQ(message_of([] { make_gpu_calls(1000, ""); }).find("ordinal = 1000, but it must be in 0.."), 0U);
}

TEST(GpuCallsOnGpu, streams_and_marks_are_passed) {
  if (const std::string why = missing_gpu(); !why.empty()) GTEST_SKIP() << why;
  const auto calls = make_gpu_calls(0, "");
  const auto device = make_cuda_device();
  constexpr std::size_t n = std::size_t{1} << 26;
  const DeviceFloats x = device->allocate(n);
  EXPECT_EQ(calls->locate(x.get()), 0);
  std::vector<float> host(4);
  EXPECT_EQ(calls->locate(host.data()), -1);
  EXPECT_TRUE(calls->passed_mark());
  for (int i = 0; i < 100; ++i) device->multiply({x.get(), n}, 0.5F);  // milliseconds of work, queued in less
  calls->set_mark(nullptr);
  EXPECT_FALSE(calls->passed_mark());
  EXPECT_FALSE(calls->is_done(nullptr));
  device->read(std::span<const float>(x.get(), 1), host.data());  // waits for the stream
  EXPECT_TRUE(calls->is_done(nullptr));
  EXPECT_TRUE(calls->passed_mark());
  int calls_made = 0;
  calls->on_gpu([&] { ++calls_made; });
  EXPECT_EQ(calls_made, 1);
}

}  // namespace
}  // namespace oktopk::gpu_calls_test
