// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/version.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace oktopk::version_test {
namespace {

TEST(Version, library_has_three_numbers) {
  EXPECT_EQ(std::ranges::count(library_version(), '.'), 2) << library_version();
}

}  // namespace
}  // namespace oktopk::version_test
