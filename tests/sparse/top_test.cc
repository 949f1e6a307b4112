// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/top.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "oktopk/base/simd.h"
#include "tests/support/sparse.h"

namespace oktopk::top_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(std::fabs(x)); }

// Values of many kinds: what they do to a histogram differs.
std::vector<std::function<float(Random&)>> kinds() {
  return {[](Random& r) { return static_cast<float>(r.below(1000000)) * 1e-6F - 0.5F; },
          [](Random& r) { return std::ldexp(1.0F, static_cast<int>(r.below(250)) - 125); },
          [](Random& r) { return static_cast<float>(1 + r.below(3)); },
          [](Random&) { return -2.5F; },
          [](Random& r) { return r.below(2) == 0 ? 0.0F : -0.0F; },
          [](Random& r) { return r.below(500) == 0 ? 1e30F : 1 + static_cast<float>(r.below(9)) * 0x1p-23F; },
          [](Random& r) { return std::bit_cast<float>(static_cast<std::uint32_t>(r.below(100))); },
          [](Random& r) { return std::bit_cast<float>(static_cast<std::uint32_t>(r.below(std::uint64_t{1} << 32))); }};
}

SparseVector some(Random& random, std::size_t size, const std::function<float(Random&)>& value) {
  SparseVector v;
  for (std::size_t i = 0; i < size; ++i) v.push_back(static_cast<Index>(3 * i + 1), value(random));
  return v;
}

// By bits: NaN is not equal to itself.
using BitList = std::vector<std::pair<Index, std::uint32_t>>;
BitList bit_list(CooView v) {
  BitList out;
  for (std::size_t i = 0; i < v.size(); ++i) out.emplace_back(v.idx[i], std::bit_cast<std::uint32_t>(v.val[i]));
  return out;
}

void expect_keep_largest(const SparseVector& v, std::size_t k) {
  BitList order = bit_list(v);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return (a.second << 1) > (b.second << 1); });
  BitList kept(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
  BitList rest(order.begin() + static_cast<std::ptrdiff_t>(k), order.end());
  std::sort(kept.begin(), kept.end());
  std::sort(rest.begin(), rest.end());
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    SparseVector mine = v;
    SparseVector dropped;
    keep_largest(mine, k, &dropped);
    ASSERT_EQ(bit_list(mine), kept) << to_string(level) << " " << v.size() << " " << k;
    ASSERT_EQ(bit_list(dropped), rest) << to_string(level) << " " << v.size() << " " << k;
    mine = v;
    keep_largest(mine, k);
    ASSERT_EQ(bit_list(mine), kept) << to_string(level) << " " << v.size() << " " << k;
    if (k > 0) {
      ASSERT_EQ(bits_of(kth_magnitude(v.val, k)), order[k - 1].second & 0x7fffffffU);
    }
  }
}

TEST(Top, keep_largest_of_as_many_or_fewer_changes_nothing) {
  for (const std::size_t k : {2U, 3U, 1000U}) {
    SparseVector v = make_sparse({{1, 2}, {3, -2}});
    SparseVector dropped;
    keep_largest(v, k, &dropped);
    EXPECT_EQ(list_of(v), (EntryList{{1, 2}, {3, -2}}));
    EXPECT_TRUE(dropped.empty());
  }
}

TEST(Top, keep_largest_appends_to_dropped) {
  SparseVector v = make_sparse({{1, 2}, {3, 1}});
  SparseVector dropped = make_sparse({{9, 9}});
  keep_largest(v, 1, &dropped);
  EXPECT_EQ(list_of(dropped), (EntryList{{9, 9}, {3, 1}}));
}

TEST(Top, keep_largest_of_all_small_sizes_equals_a_stable_sort) {
  Random random(3);
  for (const auto& kind : kinds())
    for (std::size_t size = 0; size <= 40; ++size) {
      const SparseVector v = some(random, size, kind);
      for (std::size_t k = 0; k <= size; ++k) expect_keep_largest(v, k);
    }
}

TEST(Top, keep_largest_of_many_equals_a_stable_sort) {
  Random random(4);
  for (const auto& kind : kinds())
    for (const std::size_t size : {1023U, 1024U, 1025U, 1026U, 5000U, 40001U}) {
      const SparseVector v = some(random, size, kind);
      for (const std::size_t k : {std::size_t{1}, size / 3, size * 10 / 11, size - 1, size}) expect_keep_largest(v, k);
    }
}

TEST(Top, keep_largest_with_infinities_and_nans_keeps_them_first) {
  expect_keep_largest(make_sparse({{1, 1}, {2, kInf}, {3, -kNan}, {4, 3e38F}, {5, -kInf}, {6, kNan}}), 3);
}

TEST(Top, keep_at_least_any_size_and_threshold_equals_a_comparison) {
  Random random(6);
  for (const auto& kind : kinds())
    for (std::size_t size = 0; size <= 40; ++size) {
      const SparseVector v = some(random, size, kind);
      for (const float threshold : {-1.0F, 0.0F, 1e-40F, 0.25F, 2.0F, kInf})
        for (const SimdLevel level : simd_levels()) {
          const SimdLimit limit(level);
          BitList expected;
          for (const auto& [i, bits] : bit_list(v))
            if (threshold <= 0 || (bits & 0x7fffffffU) >= bits_of(threshold)) expected.emplace_back(i, bits);
          SparseVector mine = v;
          keep_at_least(mine, threshold);
          ASSERT_EQ(bit_list(mine), expected) << to_string(level) << " " << threshold;
        }
    }
}

TEST(Top, smallest_magnitude_of_nothing_is_zero) { EXPECT_EQ(smallest_magnitude({}), 0); }

TEST(Top, smallest_magnitude_of_any_size_is_the_last_kth) {
  Random random(7);
  for (const auto& kind : kinds())
    for (std::size_t size = 1; size <= 60; ++size) {
      const SparseVector v = some(random, size, kind);
      std::uint32_t expected = 0x7fffffffU;
      for (const float x : v.val) expected = std::min(expected, bits_of(x));
      for (const SimdLevel level : simd_levels()) {
        const SimdLimit limit(level);
        ASSERT_EQ(bits_of(smallest_magnitude(v.val)), expected) << to_string(level);
      }
    }
}

}  // namespace
}  // namespace oktopk::top_test
