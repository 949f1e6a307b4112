// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/undo_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace oktopk::changed_entries_test {
namespace {

TEST(ChangedEntries, has_each_place_once_in_order_with_its_new_value) {
  const auto device = make_cpu_device();
  std::vector<float> x(200, 1.0F);
  UndoList list;
  list.begin();
  const std::vector<Index> late = {1130, 1199}, early = {1000, 1130}, taken = {1064, 1063};
  const std::vector<float> zeros(2, 0.0F);
  list.add_at(*device, x, 1000, {late, zeros});
  list.add_at(*device, x, 1000, {early, zeros});
  list.note_taken({taken, std::vector<float>{1, 1}});
  x[0] = -3, x[130] = 0, x[199] = 5, x[63] = x[64] = 0;
  ChangedEntries entries;
  SparseVector changed;
  for (int i = 0; i < 2; ++i) {  // the second call finds nothing of the first
    entries.read(list, *device, {x, 1000}, changed);
    EXPECT_EQ(changed.idx, (Uninitialised<Index>{0, 63, 64, 130, 199}));
    EXPECT_EQ(changed.val, (Uninitialised<float>{-3, 0, 0, 0, 5}));
  }
  list.begin();
  entries.read(list, *device, {x, 1000}, changed);
  EXPECT_TRUE(changed.empty());
  entries.read(list, *device, {}, changed);
  EXPECT_TRUE(changed.empty());
}

}  // namespace
}  // namespace oktopk::changed_entries_test
