// SPDX-License-Identifier: Apache-2.0
// Each residual rule by hand, on an accumulator of six values of which three were sent.
#include "oktopk/optim/residual.h"

#include <gtest/gtest.h>

#include "tests/support/sparse.h"

namespace oktopk {
namespace {

using Values = std::vector<float>;

// acc = {1, 2, 4, 8, 16, 32}; sent 1, 3, 5; applied 3 (and 4, which others sent); this rank pruned
// a partial sum at 5, and made rounding errors at 1 (not applied) and 3 (applied).
Values settled(ResidualKind kind) {
  Values acc = {1, 2, 4, 8, 16, 32};
  const SparseVector sent = make_sparse({{1, 2}, {3, 8}, {5, 32}});
  Outcome outcome;
  outcome.update = make_sparse({{3, 100}, {4, 200}});
  outcome.shared = make_sparse({{3, 8}});
  outcome.returned = make_sparse({{1, 0.25F}, {3, 0.5F}});
  outcome.dropped = make_sparse({{5, 64}});
  const auto rule = make_residual_rule(kind);
  EXPECT_EQ(rule->kind(), kind);
  rule->settle(*make_cpu_device(), acc, sent, outcome);
  return acc;
}

TEST(ResidualRule, none_keeps_nothing) {
  EXPECT_EQ(settled(ResidualKind::none), (Values{0, 0, 0, 0, 0, 0}));
}

TEST(ResidualRule, sender_keeps_clears_what_was_applied_and_takes_its_rounding_error) {
  EXPECT_EQ(settled(ResidualKind::sender_keeps), (Values{1, 2, 4, 0.5F, 16, 32}));
}

TEST(ResidualRule, all_sent_cleared_keeps_rounding_errors_of_what_was_sent) {
  EXPECT_EQ(settled(ResidualKind::all_sent_cleared), (Values{1, 0.25F, 4, 0.5F, 16, 0}));
}

TEST(ResidualRule, holder_keeps_takes_what_it_pruned) {
  EXPECT_EQ(settled(ResidualKind::holder_keeps), (Values{1, 0.25F, 4, 0.5F, 16, 64}));
}

TEST(ResidualRule, owner_memory_takes_what_comes_back) {
  EXPECT_EQ(settled(ResidualKind::owner_memory), (Values{1, 0.25F, 4, 0.5F, 16, 0}));
}

TEST(ResidualRule, holder_keeps_a_sum_for_an_index_it_did_not_send) {
  Values acc = {1, 2};
  Outcome outcome;
  outcome.dropped = make_sparse({{0, 7}});
  make_residual_rule(ResidualKind::holder_keeps)
      ->settle(*make_cpu_device(), acc, make_sparse({{1, 2}}), outcome);
  EXPECT_EQ(acc, (Values{8, 0}));
}

}  // namespace
}  // namespace oktopk
