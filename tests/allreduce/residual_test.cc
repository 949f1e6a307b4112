// SPDX-License-Identifier: Apache-2.0
// Each residual rule by hand, on an accumulator of six values of which three were sent.
#include "oktopk/allreduce/residual.h"

#include <gtest/gtest.h>

#include "tests/support/sparse.h"

namespace oktopk::residual_test {
namespace {

using Values = std::vector<float>;

Values values_of(const Residual& residual) {
  const auto values = residual.values();
  return {values.begin(), values.end()};
}

// acc = {1, 2, 4, 8, 16, 32}; sent 1, 3, 5; applied 3 (and 4, which others sent); this rank pruned
// a partial sum at 5, and made rounding errors at 1 (not applied) and 3 (applied).
Values settled(ResidualKind kind) {
  const auto device = make_cpu_device();
  Residual residual(*device, 6);
  residual.assign(Values{1, 2, 4, 8, 16, 32});
  const SparseVector sent = make_sparse({{1, 2}, {3, 8}, {5, 32}});
  Outcome outcome;
  outcome.update = make_sparse({{3, 100}, {4, 200}});
  outcome.shared = make_sparse({{3, 8}});
  outcome.returned = make_sparse({{1, 0.25F}, {3, 0.5F}});
  outcome.dropped = make_sparse({{5, 64}});
  const ResidualRule& rule = residual_rule(kind);
  EXPECT_EQ(rule.kind, kind);
  rule.settle(residual, sent, outcome);
  return values_of(residual);
}

TEST(ResidualRule, settle_keeps_what_each_rule_says) {
  EXPECT_EQ(settled(ResidualKind::none), (Values{0, 0, 0, 0, 0, 0}));
  // cleared: what was applied; its rounding error
  EXPECT_EQ(settled(ResidualKind::sender_keeps), (Values{1, 2, 4, 0.5F, 16, 32}));
  // cleared: what was sent; rounding errors, or what an owner gives back
  EXPECT_EQ(settled(ResidualKind::all_sent_cleared), (Values{1, 0.25F, 4, 0.5F, 16, 0}));
  EXPECT_EQ(settled(ResidualKind::owner_memory), (Values{1, 0.25F, 4, 0.5F, 16, 0}));
  // the same, and what this rank pruned
  EXPECT_EQ(settled(ResidualKind::holder_keeps), (Values{1, 0.25F, 4, 0.5F, 16, 64}));
}

TEST(ResidualRule, none_keeps_rounding_errors_of_a_dense_exchange) {
  const auto device = make_cpu_device();
  Residual residual(*device, 3);
  residual.assign(Values{1, 2, 4});
  residual.clear_later(std::vector<Index>{1});
  Outcome outcome;
  outcome.dense_update = {1, 2, 3};
  outcome.dense_returned = {0, 0.25F, -0.5F};
  residual_rule(ResidualKind::none).settle(residual, {}, outcome);
  EXPECT_EQ(values_of(residual), (Values{0, 0.25F, -0.5F}));
}

TEST(ResidualRule, holder_keeps_a_sum_for_an_index_it_did_not_send) {
  const auto device = make_cpu_device();
  Residual residual(*device, 2);
  residual.assign(Values{1, 2});
  Outcome outcome;
  outcome.dropped = make_sparse({{0, 7}});
  residual_rule(ResidualKind::holder_keeps).settle(residual, make_sparse({{1, 2}}), outcome);
  EXPECT_EQ(values_of(residual), (Values{8, 0}));
}

class ResidualStore : public testing::Test {
 protected:
  ResidualStore() { residual_.assign(Values{1, 2, 3, 4}); }

  std::unique_ptr<Device> device_ = make_cpu_device();
  Residual residual_{*device_, 4};
};

TEST_F(ResidualStore, what_is_due_to_be_cleared_is_cleared_by_the_next_pass) {
  residual_.clear_later(std::vector<Index>{1, 3});
  const Values gradient = {10, 10, 10, 10};
  device_->accumulate(residual_.begin(gradient, 1));
  residual_.accumulated();
  EXPECT_EQ(values_of(residual_), (Values{11, 10, 13, 10}));
}

TEST_F(ResidualStore, every_other_use_sees_it_cleared_already) {
  residual_.clear_later(std::vector<Index>{1});
  EXPECT_EQ(values_of(residual_), (Values{1, 0, 3, 4}));
  residual_.clear_later(std::vector<Index>{0});
  residual_.add(make_sparse({{0, 5}, {2, 1}}));
  EXPECT_EQ(values_of(residual_), (Values{5, 0, 4, 4}));
  residual_.clear_later(std::vector<Index>{2});
  residual_.clear_later(std::vector<Index>{3});
  EXPECT_EQ(values_of(residual_), (Values{5, 0, 0, 0}));
  residual_.clear_later(std::vector<Index>{0});
  residual_.add_host(Values{7, 7, 0, 0}, 1);
  EXPECT_EQ(values_of(residual_), (Values{7, 7, 0, 0}));
  residual_.clear_later(std::vector<Index>{0});
  residual_.multiply(2);
  EXPECT_EQ(values_of(residual_), (Values{0, 14, 0, 0}));
  residual_.clear_later(std::vector<Index>{1});
  residual_.assign(Values{1, 2, 3, 4});
  EXPECT_EQ(values_of(residual_), (Values{1, 2, 3, 4}));
  residual_.clear_later(std::vector<Index>{1});
  residual_.add_host(Values{0, 5, 6, 0}, 2);
  EXPECT_EQ(values_of(residual_), (Values{1, 10, 15, 4}));
  residual_.assign();
  EXPECT_EQ(values_of(residual_), (Values{0, 0, 0, 0}));
}

}  // namespace
}  // namespace oktopk::residual_test
