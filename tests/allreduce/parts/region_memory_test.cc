// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/region_memory.h"

#include <gtest/gtest.h>

#include <random>

#include "oktopk/sparse/top.h"
#include "tests/allreduce/parts/plain_region.h"
#include "tests/support/sparse.h"

namespace oktopk::region_memory_test {
namespace {

std::uint64_t count_common(const SparseVector& a, const SparseVector& b) {
  SparseVector common;
  intersect(a, b.idx, common);
  return common.size();
}

class RegionMemoryTest : public testing::Test {
 protected:
  EntryList take(CooView v, float threshold) {
    SparseVector taken;
    memory_.add_take(*device_, v, {threshold, 0.01F}, taken, near_);
    return list_of(taken);
  }
  EntryList entries() const {
    SparseVector all;
    memory_.append_to(*device_, all);
    return list_of(all);
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  RegionMemory memory_;
  NearTail near_;
};

TEST_F(RegionMemoryTest, add_take_equals_a_full_scan_whatever_it_holds) {
  const struct {
    Index width;
    double density;
    float window;
  } rows[] = {{0, 0.3, 0x1p-5F},      {1, 0.3, 0x1p-12F},    {63, 0.05, 0x1p-5F}, {64, 0.3, 0x1p-5F},
              {5000, 0.001, 0.01F},   {5000, 0.02, 0.01F},   {5000, 0.3, 0.01F},  {8191, 0.05, 0x1p-5F},
              {8192, 0.05, 0x1p-12F}, {20000, 0.05, 0x1p-5F}};
  for (const auto& row : rows) {
    const Range region{1000, 1000 + row.width};
    std::mt19937 random(row.width);
    memory_.load(*device_, region);
    PlainRegion plain(region);
    Arrivals next;
    for (int step = 0; step < 60; ++step) {
      SCOPED_TRACE(std::to_string(row.width) + " of density " + std::to_string(row.density));
      next.draw(random, region, row.density, step);
      memory_.add(*device_, next.a);
      SparseVector taken;
      memory_.add_take(*device_, next.b, {next.threshold, row.window}, taken, near_);
      plain.add(next.a);
      plain.add(next.b);
      ASSERT_EQ(list_of(taken), list_of(plain.take(next.threshold))) << "step " << step;
      ASSERT_EQ(list(memory_.values()), plain.values()) << "step " << step;
      ASSERT_EQ(near_.arrivals, count_common(taken, next.b)) << "step " << step;
    }
    EXPECT_EQ(entries(), list_of(plain.take(0)));
  }
}

TEST_F(RegionMemoryTest, add_take_goes_on_after_someone_looked_at_the_values) {
  memory_.load(*device_, {10, 200});
  memory_.add(*device_, make_sparse({{10, 1}, {50, -3}, {199, 2}}));
  EXPECT_EQ(memory_.values()[40], -3);
  EXPECT_EQ(take(make_sparse({{10, 1}}), 2.0F), (EntryList{{10, 2}, {50, -3}, {199, 2}}));
  EXPECT_EQ(near_.arrivals, 1u);
  EXPECT_EQ(entries(), EntryList{});
}

TEST_F(RegionMemoryTest, load_takes_few_and_many_values_and_scale_forgets_the_log) {
  const Range region{5, 1005};
  std::mt19937 random(3);
  for (const double density : {0.01, 0.5}) {
    PlainRegion plain(region);
    plain.add(random_part(random, region, density));
    memory_.load(*device_, region, plain.values());
    EXPECT_EQ(memory_.region(), region);
    EXPECT_EQ(take({}, 1.5F), list_of(plain.take(1.5F)));  // from here on there is a log
    memory_.scale(*device_, 4);
    plain.scale(4);
    EXPECT_EQ(take({}, 1.5F), list_of(plain.take(1.5F)));
    EXPECT_EQ(list(memory_.values()), plain.values());
    memory_.scale(*device_, 0);
    EXPECT_EQ(entries(), EntryList{});
    EXPECT_EQ(list(memory_.values()), std::vector<float>(1000, 0.0F));
  }
}

TEST_F(RegionMemoryTest, append_largest_has_the_largest_entries_whatever_it_holds) {
  const Range region{5, 5005};
  std::mt19937 random(4);
  for (const double density : {0.001, 0.5})
    for (const std::size_t count : {1U, 30U, 100000U}) {
      PlainRegion plain(region);
      plain.add(random_part(random, region, density));
      memory_.load(*device_, region, plain.values());
      SparseVector found;
      memory_.append_largest(*device_, count, found);
      SparseVector expected = plain.take(0);
      keep_largest(expected, count);
      keep_largest(found, count);
      EXPECT_EQ(list_of(found), list_of(expected)) << density << ", " << count;
    }
}

// Without changes since the last scan the counts are exact.
TEST(RegionMemory, add_take_counts_what_lies_in_the_window_below_the_threshold) {
  const auto device = make_cpu_device();
  RegionMemory memory;
  memory.load(*device, {0, 2000});
  SparseVector v;
  for (Index i = 0; i < 2000; ++i)  // 0.0005 .. 1, in steps of 0.0005
    v.push_back(i, (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(i + 1) / 2000);
  SparseVector taken;
  NearTail near;
  memory.add_take(*device, v, {0.80001F, 0.04F}, taken, near);
  EXPECT_EQ(taken.size(), 400u);
  EXPECT_EQ(near.arrivals, 400u);
  for (const std::uint64_t count : near.below) EXPECT_NEAR(static_cast<double>(count), 8, 1);
  memory.add_take(*device, {}, {0.79F, 0.04F}, taken, near);  // falls into what waited
  EXPECT_EQ(taken.size(), 21u);
  EXPECT_EQ(near.arrivals, 0u);
}

}  // namespace
}  // namespace oktopk::region_memory_test
