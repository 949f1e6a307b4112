// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/simd.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"

namespace oktopk::simd_test {
namespace {

TEST(Simd, levels_start_with_scalar_and_end_with_the_one_in_use) {
  ASSERT_FALSE(simd_levels().empty());
  EXPECT_EQ(simd_levels().front(), SimdLevel::scalar);
  EXPECT_EQ(simd_levels().back(), simd_level());
}

TEST(Simd, limit_holds_for_its_scope) {
  const SimdLevel before = simd_level();
  {
    const SimdLimit limit(SimdLevel::scalar);
    EXPECT_EQ(simd_level(), SimdLevel::scalar);
  }
  EXPECT_EQ(simd_level(), before);
}

TEST(Simd, limit_refuses_what_the_machine_lacks) {
  if (simd_levels().back() == SimdLevel::avx512) GTEST_SKIP() << "this machine has every level";
  EXPECT_THROW(SimdLimit{SimdLevel::avx512}, UsageError);
}

TEST(Simd, names_are_found_again) {
  for (const SimdLevel level : simd_levels()) EXPECT_EQ(find_simd_level(to_string(level)), level) << to_string(level);
  EXPECT_THROW(find_simd_level("sse9"), UsageError);
}

}  // namespace
}  // namespace oktopk::simd_test
