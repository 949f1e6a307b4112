// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/undo_list.h"

#include <gtest/gtest.h>

#include <vector>

#include "oktopk/allreduce/parts/region_memory.h"

namespace oktopk::undo_list_test {
namespace {

TEST(UndoList, gives_back_the_values_of_before_the_first_of_several_changes) {
  const auto device = make_cpu_device();
  std::vector<float> x = {1, 0, -3, 4, 0};
  const std::vector<float> before = x;
  UndoList list;
  list.begin();
  const std::vector<Index> first = {10, 11, 12};
  const std::vector<float> added = {6, 8, 12};
  list.add_at(*device, x, 10, {first, added});
  EXPECT_EQ(x, (std::vector<float>{7, 8, 9, 4, 0}));
  const std::vector<Index> taken = {12, 13};
  const std::vector<float> values = {9, 4};
  list.note_taken({taken, values});
  x[2] = 0, x[3] = 0;
  SparseVector large, others;
  const std::vector<float> more = {0, -9, 5};
  list.add_take(*device, x, 10, {first, more}, {.take = magnitude_bits(5.0F), .report = 1}, large, others);
  EXPECT_EQ(x, (std::vector<float>{0, -1, 0, 0, 0}));
  list.undo(*device, x, 10);
  EXPECT_EQ(x, before);
}

TEST(UndoList, notes_nothing_while_it_is_off) {
  const auto device = make_cpu_device();
  std::vector<float> x = {1, 2};
  UndoList list;
  const std::vector<Index> idx = {0};
  const std::vector<float> val = {4};
  list.add_at(*device, x, 0, {idx, val});
  list.undo(*device, x, 0);
  EXPECT_EQ(x, (std::vector<float>{5, 2}));
}

SparseVector entries_of(const Device& device, const RegionMemory& memory) {
  SparseVector entries;
  memory.append_to(device, entries);
  return entries;
}

TEST(UndoList, region_memory_comes_back_after_takes_and_a_new_region) {
  const auto device = make_cpu_device();
  RegionMemory memory;
  memory.load(*device, {2, 6}, std::vector<float>{1, -2, 0, 4});
  const SparseVector before = entries_of(*device, memory);
  const std::vector<Index> idx = {3, 4};
  const std::vector<float> val = {5, 0.5F};
  SparseVector taken;
  NearTail near;
  memory.note_changes();
  memory.add_take(*device, {idx, val}, {.value = 3, .window = 0.1F}, taken, near);
  ASSERT_EQ(taken.size(), 2U);
  memory.load(*device, {0, 3});
  const std::vector<Index> other = {1};
  const std::vector<float> one = {1};
  memory.add(*device, {other, one});
  memory.undo(*device);
  EXPECT_EQ(memory.region(), (Range{2, 6}));
  EXPECT_EQ(entries_of(*device, memory).idx, before.idx);
  EXPECT_EQ(entries_of(*device, memory).val, before.val);
}

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
}  // namespace oktopk::undo_list_test
