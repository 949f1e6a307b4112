// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "lab/simulate/supports.h"

#include <cmath>
#include <map>
#include <set>

#include "oktopk/base/error.h"
#include "oktopk/tune/cost.h"
#include "tests/support/sparse.h"

namespace oktopk::supports_test {
namespace {

SparseVector selection_of(const SupportSpec& spec, int rank, std::uint64_t step = 3) {
  SparseVector out;
  make_selection(spec, rank, step, out);
  return out;
}

TEST(Supports, names_lead_back_to_kinds) {
  for (const SupportInfo& info : supports()) {
    EXPECT_EQ(find_support(info.name), info.kind);
  }
  EXPECT_THROW(find_support("random"), UsageError);
}

TEST(Supports, select_exactly_k_canonical_above_the_threshold) {
  for (const SupportInfo& info : supports()) {
    for (const auto& [n, k] : {std::pair<Index, std::size_t>{1, 1},
                               {7, 7},
                               {1000, 999},
                               {1000, 500},
                               {1001, 10},
                               {99991, 1000},
                               {3000000000U, 1000}}) {
      const SupportSpec spec{.n = n, .k = k, .P = 3, .kind = info.kind};
      const SparseVector out = selection_of(spec, 2);
      EXPECT_EQ(out.size(), k) << info.name;
      EXPECT_TRUE(is_canonical(out)) << info.name << " n = " << n << " k = " << k;
      EXPECT_LT(out.idx.back(), n);
      for (const float v : out.val) ASSERT_GE(std::fabs(v), 1.0F);
    }
  }
}

TEST(Supports, values_have_both_signs_and_just_passed_the_threshold) {
  for (const SupportInfo& info : supports()) {
    const SupportSpec spec{.n = 1000000, .k = 10000, .P = 3, .kind = info.kind};
    const SparseVector out = selection_of(spec, 0);
    double negative = 0;
    double excess = 0;
    double beyond_3 = 0;
    for (const float v : out.val) {
      const double above = (std::fabs(v) - 1) / 0.058;
      negative += v < 0 ? 1 : 0;
      excess += above;
      beyond_3 += above > 3 ? 1 : 0;
    }
    EXPECT_NEAR(negative / 10000, 0.5, 0.02) << info.name;
    EXPECT_NEAR(excess / 10000, 1, 0.04) << info.name;
    EXPECT_NEAR(beyond_3 / 10000, std::exp(-3.0), 0.007) << info.name;
  }
}

TEST(Supports, differ_by_rank_step_and_seed_only) {
  for (const SupportInfo& info : supports()) {
    SupportSpec spec{.n = 10000, .k = 100, .P = 4, .kind = info.kind};
    const EntryList first = list_of(selection_of(spec, 1, 5));
    EXPECT_EQ(list_of(selection_of(spec, 1, 5)), first);
    EXPECT_NE(list_of(selection_of(spec, 2, 5)), first);
    EXPECT_NE(list_of(selection_of(spec, 1, 6)), first);
    spec.seed = 2;
    EXPECT_NE(list_of(selection_of(spec, 1, 5)), first);
  }
}

TEST(Supports, independent_unions_are_those_of_the_model) {
  for (const int P : {2, 16, 64, 300}) {
    const SupportSpec spec{.n = 100000, .k = 1000, .P = P};
    const double expected = Problem{.n = 100000, .k = 1000, .P = P}.union_of(P);
    const double seen = static_cast<double>(union_size(spec));
    EXPECT_NEAR(seen / expected, 1, 0.01) << P;
  }
}

TEST(Supports, correlated_unions_grow_like_m_to_the_seven_tenths) {
  for (const std::size_t k : {100, 1000, 3000}) {
    for (const int P : {16, 64}) {
      const SupportSpec spec{.n = 100000, .k = k, .P = P, .kind = Support::correlated};
      const Problem problem{.n = 100000, .k = static_cast<double>(k), .P = P};
      const auto seen = static_cast<double>(union_size(spec));
      EXPECT_NEAR(problem.exponent_of(seen), 0.7, 0.05) << "k = " << k << ", P = " << P;
    }
  }
}

TEST(Supports, correlated_indices_have_one_sign_in_a_step) {
  const SupportSpec spec{.n = 100000, .k = 1000, .P = 16, .kind = Support::correlated};
  std::map<Index, bool> negative;
  for (int rank = 0; rank < 16; ++rank) {
    const SparseVector out = selection_of(spec, rank);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool is_negative = out.val[i] < 0;
      EXPECT_EQ(negative.try_emplace(out.idx[i], is_negative).first->second, is_negative);
    }
  }
}

TEST(Supports, correlated_signs_turn_within_16_steps) {
  const SupportSpec spec{.n = 100000, .k = 1000, .P = 1, .kind = Support::correlated};
  const auto turned = [&](std::uint64_t steps) {
    std::map<Index, bool> negative;
    for (const auto& [i, v] : list_of(selection_of(spec, 0, 100))) negative[i] = v < 0;
    double both = 0;
    double changed = 0;
    for (const auto& [i, v] : list_of(selection_of(spec, 0, 100 + steps))) {
      if (!negative.contains(i)) continue;
      ++both;
      changed += negative[i] != (v < 0) ? 1 : 0;
    }
    EXPECT_GT(both, 200);
    return changed / both;
  };
  EXPECT_LT(turned(1), 0.1);
  EXPECT_NEAR(turned(16), 0.5, 0.12);
  EXPECT_NEAR(turned(100), 0.5, 0.12);
}

TEST(Supports, correlated_indices_stay_hot) {
  const SupportSpec spec{.n = 100000, .k = 1000, .P = 16, .kind = Support::correlated};
  std::map<Index, int> hits;
  for (int rank = 0; rank < 16; ++rank) {
    const SparseVector out = selection_of(spec, rank, static_cast<std::uint64_t>(rank));
    for (std::size_t i = 0; i < out.size(); ++i) ++hits[out.idx[i]];
  }
  // One index per stratum is by far the likeliest, on all ranks and steps.
  const auto hot = std::count_if(hits.begin(), hits.end(), [](auto& hit) { return hit.second > 3; });
  EXPECT_GT(hot, 800);
}

TEST(Supports, layers_differ_in_density) {
  const SupportSpec spec{.n = 800000, .k = 8000, .P = 2, .kind = Support::layered};
  const SparseVector out = selection_of(spec, 0);
  std::vector<double> counts;
  for (Index l = 0; l < 8; ++l) counts.push_back(static_cast<double>(part(out, {l * 100000, (l + 1) * 100000}).size()));
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  EXPECT_NEAR(*most / *least, 30, 1);
}

TEST(Supports, union_is_that_of_all_first_selections) {
  for (const SupportInfo& info : supports()) {
    const SupportSpec spec{.n = 5003, .k = 400, .P = 12, .kind = info.kind, .seed = 9};
    std::set<Index> all;
    for (int r = 0; r < spec.P; ++r)
      for (const auto& [i, v] : list_of(selection_of(spec, r, 0))) all.insert(i);
    EXPECT_EQ(union_size(spec), all.size()) << info.name;
  }
}

TEST(Supports, voted_cuts_divide_the_load) {
  const SupportSpec spec{.n = 80000, .k = 1600, .P = 4, .kind = Support::layered};
  const Cuts cuts = voted_cuts(spec);
  ASSERT_EQ(cuts.size(), 5U);
  EXPECT_EQ(cuts.front(), 0U);
  EXPECT_EQ(cuts.back(), 80000U);
  for (int rank = 0; rank < 4; ++rank) {
    const SparseVector selection = selection_of(spec, rank, 0);
    for (int r = 0; r < 4; ++r) EXPECT_NEAR(static_cast<double>(part(selection, region(cuts, r)).size()), 400, 3);
  }
  EXPECT_EQ(voted_cuts({.n = 10, .k = 1}), (Cuts{0, 10}));
}

TEST(Supports, refuse_what_cannot_be_selected) {
  SparseVector out;
  EXPECT_THROW(make_selection({.n = 10, .k = 11}, 0, 0, out), UsageError);
  EXPECT_THROW(make_selection({.n = 10, .k = 0}, 0, 0, out), UsageError);
  EXPECT_THROW(make_selection({.n = 10, .k = 1, .P = 2}, 2, 0, out), UsageError);
  EXPECT_THROW(make_selection({.n = 10, .k = 1, .P = 0}, 0, 0, out), UsageError);
}

}  // namespace
}  // namespace oktopk::supports_test
