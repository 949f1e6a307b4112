// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/fusion.h"

#include <gtest/gtest.h>

#include "tests/support/message.h"

namespace oktopk::fusion_test {
namespace {

using Counts = std::vector<std::size_t>;

Counts counts_of(const std::vector<Bucket>& buckets) {
  Counts counts;
  for (const Bucket& bucket : buckets) counts.push_back(bucket.end - bucket.first);
  return counts;
}

FusionOptions policy(const std::string& name, std::size_t values = 1) {
  FusionOptions options;
  options.policy = find_fusion_policy(name);
  options.values = values;
  return options;
}

Counts plan(const std::vector<Index>& tensors, const FusionOptions& options) {
  return counts_of(plan_buckets(tensors, options));
}

TEST(Fusion, names_are_found_and_others_listed) {
  for (const auto* name : {"whole", "tensor", "size"}) EXPECT_EQ(to_string(find_fusion_policy(name)), name);
  EXPECT_NE(message_of([] { find_fusion_policy("some"); }).find("whole, tensor, size"), std::string::npos);
}

TEST(Fusion, plans_by_hand) {
  const std::vector<Index> tensors = {5, 1, 1, 3, 2};
  EXPECT_EQ(plan(tensors, policy("whole")), (Counts{5}));
  EXPECT_EQ(plan(tensors, policy("tensor")), (Counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 1)), (Counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 2)), (Counts{1, 1, 2, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 4)), (Counts{2, 3}));
  EXPECT_EQ(plan(tensors, policy("size", 6)), (Counts{3, 2}));
  EXPECT_EQ(plan(tensors, policy("size", 7)), (Counts{4, 1}));
  EXPECT_EQ(plan(tensors, policy("size", 100)), (Counts{5}));
  EXPECT_EQ(plan({0, 4, 0, 0}, policy("size", 2)), (Counts{3, 1}));
}

TEST(Fusion, buckets_run_from_the_last_tensor_backwards) {
  const std::vector<Index> tensors = {5, 1, 1, 3, 2};
  const auto buckets = plan_buckets(tensors, policy("size", 4));
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0], (Bucket{3, 5, {7, 12}}));
  EXPECT_EQ(buckets[1], (Bucket{0, 3, {0, 7}}));
}

TEST(Fusion, bad_input_is_refused) {
  EXPECT_NE(message_of([] { plan({1}, policy("size", 0)); }).find("values = 0"), std::string::npos);
}

TEST(Fusion, shares_of_k_add_up_and_fit) {
  const std::vector<Index> tensors = {500, 3, 90, 1, 1, 405};
  for (const std::size_t k : {6, 10, 333, 1000}) {
    std::size_t sum = 0;
    std::size_t raised = 0;
    for (const Bucket& bucket : plan_buckets(tensors, policy("tensor"))) {
      const std::size_t share = share_of_k(k, 1000, bucket.range);
      EXPECT_GE(share, 1u);
      EXPECT_LE(share, bucket.range.width());
      sum += share;
      raised += bucket.range.width() * k < 1000 ? 1 : 0;
    }
    EXPECT_GE(sum, k);
    EXPECT_LE(sum, k + raised);
  }
  EXPECT_EQ(share_of_k(10, 1000, {0, 1000}), 10u);
  EXPECT_EQ(share_of_k(10, 1000, {7, 7}), 0u);
}

}  // namespace
}  // namespace oktopk::fusion_test
