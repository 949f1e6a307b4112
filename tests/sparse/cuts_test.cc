// SPDX-License-Identifier: Apache-2.0
// Cuts in all three ways, with the products (P * n, width * load) that do not fit 32 or 64 bits.
#include "oktopk/sparse/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/sparse.h"

namespace oktopk::cuts_test {
namespace {

constexpr Index kMaxN = 0xffffffffU;

void expect_covers(const Cuts& cuts, Index n, int P) {
  ASSERT_EQ(cuts.size(), static_cast<std::size_t>(P) + 1);
  EXPECT_EQ(cuts.front(), 0u);
  EXPECT_EQ(cuts.back(), n);
  EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
}

TEST(Cuts, equal_cuts_any_n_and_P_are_exact) {
  std::vector<int> sizes(12);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.push_back(1024);
  for (const int P : sizes)
    for (const Index n : {0U, 1U, 5U, 1000U, 0x7fffffffU, 0x80000000U, kMaxN - 1, kMaxN}) {
      const Cuts cuts = equal_cuts(n, P);
      expect_covers(cuts, n, P);
      for (std::size_t r = 0; r < cuts.size(); ++r)
        EXPECT_EQ(cuts[r], std::uint64_t{n} * r / static_cast<std::uint64_t>(P)) << n << " " << P;
    }
}

TEST(Cuts, vote_cuts_the_selection_into_equal_counts_or_else_the_width) {
  using Votes = std::vector<std::uint64_t>;
  const struct {
    SparseVector selection;
    Votes votes;  // between one region more
  } rows[] = {
      {make_sparse({{10, 1}, {11, 1}, {12, 1}, {13, 1}, {500, 1}, {501, 1}, {502, 1}, {600, 1}, {700, 1}, {999, 1}}),
       {12, 500, 502, 700}},
      {make_sparse({{3, 1}, {4, 1}, {900, 1}}), {4, 900}},       // one each
      {make_sparse({{1, 1}, {2, 1}, {3, 1}}), {250, 500, 750}},  // fewer entries than regions: equal width
      {{}, {250, 500, 750}},
  };
  for (const auto& row : rows) {
    Votes votes(row.votes.size());
    vote_cuts(row.selection, 1000, static_cast<int>(votes.size()) + 1, votes);
    EXPECT_EQ(votes, row.votes);
  }
}

TEST(Cuts, consensus_is_the_mean_of_the_votes) {
  const std::vector<std::uint64_t> summed = {10 + 20 + 33, 40 + 50 + 60};
  EXPECT_EQ(cuts_from_votes(summed, 100, 3), (Cuts{0, 21, 50, 100}));
}

TEST(Cuts, consensus_with_sums_beyond_32_bits_is_exact) {
  struct Case {
    Index n;
    int P;
  };
  for (const Case c : {Case{600000000, 5}, Case{3000000000U, 2}, Case{kMaxN, 12}, Case{kMaxN, 1024}}) {
    const auto P = static_cast<std::uint64_t>(c.P);
    std::vector<std::uint64_t> summed(P - 1);
    for (std::uint64_t r = 1; r < P; ++r)  // every rank votes for its own shift of an equal cut
      for (std::uint64_t rank = 0; rank < P; ++rank) summed[r - 1] += c.n * r / P - rank;
    const Cuts cuts = cuts_from_votes(summed, c.n, c.P);
    expect_covers(cuts, c.n, c.P);
    for (std::uint64_t r = 1; r < P; ++r) EXPECT_EQ(cuts[r], c.n * r / P - P / 2) << c.n << " " << c.P << " " << r;
  }
}

TEST(Cuts, consensus_of_random_selections_is_monotone_and_covers) {
  Random random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const int P = 1 + static_cast<int>(random.below(12));
    const auto n = static_cast<Index>(1 + random.below(5000));
    std::vector<std::uint64_t> summed(static_cast<std::size_t>(P) - 1);
    std::vector<std::uint64_t> votes(summed.size());
    for (int rank = 0; rank < P; ++rank) {
      const auto count = random.below(std::min<Index>(n, 40) + 1);
      vote_cuts(random_sparse(random, count, 0, n), n, P, votes);
      for (std::size_t i = 0; i < votes.size(); ++i) summed[i] += votes[i];
    }
    expect_covers(cuts_from_votes(summed, n, P), n, P);
  }
}

TEST(Cuts, from_load_gives_known_cuts) {
  const struct {
    Cuts old;
    std::vector<std::uint64_t> load;
    Cuts cuts;
  } rows[] = {
      {{0, 10, 50, 100}, {0, 0, 0}, {0, 10, 50, 100}},  // none
      {{0, 10, 50, 100}, {9, 9, 9}, {0, 10, 50, 100}},  // even
      {{0, 100, 200, 300, 400}, {40, 0, 0, 0}, {0, 25, 50, 75, 400}},
      {{0, 100, 200, 300, 400}, {0, 0, 0, 40}, {0, 325, 350, 375, 400}},
      {{0, 100, 200, 300, 400}, {0, 80, 0, 0}, {0, 125, 150, 175, 400}},
      {{0, 0, 100, 100, 400}, {0, 30, 0, 10}, {0, 33, 66, 100, 400}},  // regions of no width
  };
  for (const auto& row : rows) EXPECT_EQ(cuts_from_load(row.old, row.load), row.cuts);
}

// The load of [begin, end) when each old region's is spread evenly over it.
double load_inside(Range range, const Cuts& old, std::span<const std::uint64_t> load) {
  double sum = 0;
  for (std::size_t r = 0; r < load.size(); ++r) {
    const Range from = region(old, static_cast<int>(r));
    const double low = std::max(range.begin, from.begin);
    const double high = std::min(range.end, from.end);
    if (high > low) sum += static_cast<double>(load[r]) * (high - low) / static_cast<double>(from.width());
  }
  return sum;
}

TEST(Cuts, from_load_gives_every_region_the_mean_load) {
  Random random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const int P = 1 + static_cast<int>(random.below(12));
    Cuts old = {0};
    std::vector<std::uint64_t> load;
    double densest = 0;
    for (int r = 0; r < P; ++r) {
      const Index width = static_cast<Index>(1 + random.below(trial % 2 == 0 ? 100 : 300000000));
      old.push_back(old.back() + width);
      load.push_back(random.below(3) == 0 ? 0 : random.below(1000000));
      densest = std::max(densest, static_cast<double>(load.back()) / width);
    }
    const Cuts cuts = cuts_from_load(old, load);
    expect_covers(cuts, old.back(), P);
    const auto total = std::accumulate(load.begin(), load.end(), 0.0);
    if (total == 0) continue;
    // Both borders of a region are rounded to an index, and the load aimed at to an integer.
    for (int r = 0; r < P; ++r)
      EXPECT_NEAR(load_inside(region(cuts, r), old, load), total / P, densest + 1.5) << "trial " << trial;
  }
}

TEST(Cuts, from_load_with_huge_widths_and_loads_does_not_overflow) {
  const Cuts old = {0, 0x7fffffffU, kMaxN};
  const std::uint64_t huge = std::uint64_t{1} << 62;
  EXPECT_EQ(cuts_from_load(old, std::vector<std::uint64_t>{huge, huge}), old);
  const Cuts cuts = cuts_from_load(old, std::vector<std::uint64_t>{3 * (huge / 4), huge / 4});
  expect_covers(cuts, kMaxN, 2);
  EXPECT_NEAR(static_cast<double>(cuts[1]), 0x7fffffff * (2.0 / 3), 2);
}

}  // namespace
}  // namespace oktopk::cuts_test
