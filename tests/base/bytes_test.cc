// SPDX-License-Identifier: Apache-2.0
// Uninitialised memory must keep what is there when it grows, and must honour values that are
// given.
#include "oktopk/base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace oktopk::bytes_test {
namespace {

TEST(Uninitialised, resize_growing_keeps_the_old_elements) {
  Uninitialised<int> v = {1, 2, 3};
  v.resize(100000);
  EXPECT_EQ(v[0], 1);
  EXPECT_EQ(v[2], 3);
}

TEST(Uninitialised, resize_within_capacity_does_not_touch_new_elements) {
  Uninitialised<int> v = {1, 2, 3};
  v.resize(1);
  v.resize(3);
  EXPECT_EQ(v[1], 2);
  EXPECT_EQ(v[2], 3);
}

TEST(Uninitialised, resize_and_assign_with_a_value_write_it) {
  Uninitialised<int> v;
  v.assign(5, 7);
  v.resize(9, 8);
  EXPECT_EQ(v, (Uninitialised<int>{7, 7, 7, 7, 7, 8, 8, 8, 8}));
}

}  // namespace
}  // namespace oktopk::bytes_test
