// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/nccl/calls.h"

#include <gtest/gtest.h>

#include <string>

#include "oktopk/base/error.h"
#include "tests/comm/nccl/world.h"
#include "tests/support/message.h"

namespace oktopk::nccl_library_test {
namespace {

TEST(NcclLibrary, missing_library_is_named_with_the_way_out) {
  const std::string text = message_of<DeviceError>([] { load_nccl("/no/such/nccl.so"); });
  EXPECT_EQ(text.find("/no/such/nccl.so was not found: install NCCL, or give its path in NcclOptions::library ("), 0U)
      << text;
}

TEST(NcclLibrary, library_that_is_not_nccl_is_refused) {
  EXPECT_EQ(message_of<DeviceError>([] { load_nccl("libm.so.6"); }),
            "libm.so.6 has no function ncclGetVersion: it is not NCCL 2.14 or newer");
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
  const std::string text = message_of<DeviceError>([] { load_nccl(FAKE_NCCL_PATH); });
  EXPECT_NE(text.find("is NCCL 2.8.4, but 2.14.0 or newer is needed"), std::string::npos) << text;
  nccl.version = 21400;
  EXPECT_NO_THROW(load_nccl(FAKE_NCCL_PATH));
}

TEST(NcclLibrary, version_has_three_numbers) {
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");
  EXPECT_EQ(nccl_version_text(21400), "2.14.0");
  EXPECT_EQ(nccl_version_text(22907), "2.29.7");
}

}  // namespace
}  // namespace oktopk::nccl_library_test
