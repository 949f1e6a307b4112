// SPDX-License-Identifier: Apache-2.0
// The loader of NCCL, and questions to a GPU. Without a GPU only the errors are tested, and the others say that they
// were skipped.
#include "oktopk/comm/nccl/calls.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/device/device.h"
#include "tests/comm/nccl/world.h"
#include "tests/support/message.h"

namespace oktopk::nccl_calls_test {
namespace {

TEST(NcclLibrary, library_that_is_missing_or_not_nccl_is_named_with_the_way_out) {
  expect_error<DeviceError>("/no/such/nccl.so was not found: install NCCL, or give its path in NcclOptions::library (",
                            [] { load_nccl("/no/such/nccl.so"); });
  expect_error<DeviceError>("libm.so.6 has no function ncclGetVersion: it is not NCCL 2.14 or newer",
                            [] { load_nccl("libm.so.6"); });
}

TEST(NcclLibrary, every_function_is_found) {
  load_fake_nccl(FAKE_NCCL_PATH).version = 22703;
  const NcclApi api = load_nccl(FAKE_NCCL_PATH);
  int version = 0;
  EXPECT_EQ(api.get_version(&version), kNcclSuccess);
  EXPECT_EQ(version, 22703);
  NcclId id{};
  EXPECT_EQ(api.get_unique_id(&id), kNcclSuccess);
  EXPECT_EQ(std::string(id.bytes, 5), "room ");
}

TEST(NcclLibrary, version_is_checked_before_other_functions) {
  FakeNccl& nccl = load_fake_nccl(FAKE_NCCL_PATH);
  nccl.version = 2804;
  expect_error<DeviceError>("is NCCL 2.8.4, but 2.14.0 or newer is needed", [] { load_nccl(FAKE_NCCL_PATH); });
  nccl.version = 21400;
  EXPECT_NO_THROW(load_nccl(FAKE_NCCL_PATH));
}

TEST(NcclLibrary, version_has_three_numbers) {
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");
  EXPECT_EQ(nccl_version_text(21400), "2.14.0");
  EXPECT_EQ(nccl_version_text(22907), "2.29.7");
}

// Why there is no GPU here; empty: there is one.
std::string missing_gpu() {
  const std::string text = message_of<DeviceError>([] { make_gpu_calls(0, ""); });
  return text == "accepted" ? "" : text;
}

TEST(GpuCalls, missing_library_is_named) {
  expect_error<DeviceError>("/no/such/kernels.so", [] { make_gpu_calls(0, "/no/such/kernels.so"); });
}

TEST(GpuCallsOnGpu, ordinal_must_exist) {
  if (const std::string why = missing_gpu(); !why.empty()) GTEST_SKIP() << why;
  expect_error("ordinal = -1, but it must be in 0..", [] { make_gpu_calls(-1, ""); });
  expect_error("ordinal = 1000, but it must be in 0..", [] { make_gpu_calls(1000, ""); });
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
}  // namespace oktopk::nccl_calls_test
