// SPDX-License-Identifier: Apache-2.0
// Errors carry their class and the parts of their message.
#include "oktopk/base/error.h"
#include "tests/support/message.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace oktopk::error_test {
namespace {

TEST(Error, require_that_holds_does_nothing) { EXPECT_NO_THROW(require(true, "unused")); }

TEST(Error, require_that_fails_throws_usage_error_with_all_parts) {
  EXPECT_EQ(message_of<UsageError>([] { require(false, "k = ", 7, ", but n = ", 2.5, '!'); }), "k = 7, but n = 2.5!");
}

TEST(Error, fail_throws_the_class_asked_for) {
  EXPECT_EQ(message_of<CommError>([] { fail<CommError>("rank ", 3); }), "rank 3");
  EXPECT_EQ(message_of<DeviceError>([] { fail<DeviceError>("gpu"); }), "gpu");
}

TEST(Error, classes_do_not_catch_each_other) {
  static_assert(!std::is_base_of_v<UsageError, CommError>);
  static_assert(!std::is_base_of_v<CommError, DeviceError>);
  static_assert(!std::is_base_of_v<CommError, UsageError>);
  static_assert(std::is_base_of_v<std::exception, UsageError>);
  static_assert(std::is_base_of_v<std::runtime_error, CommError>);
}

}  // namespace
}  // namespace oktopk::error_test
