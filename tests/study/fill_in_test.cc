// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/study/fill_in.h"

#include <cmath>
#include <map>

#include "tests/support/world.h"

namespace oktopk::fill_in_test {
namespace {

TEST(FillIn, unions_by_hand) {
  // Ranks 0 and 2 agree, as do 1 and 3; halving joins them first.
  const auto sizes = union_sizes({{1, 2}, {3, 4}, {1, 2}, {3, 5}}, 2);
  ASSERT_EQ(sizes.size(), 3U);
  EXPECT_EQ(sizes[0].per_k, 1);
  EXPECT_EQ(sizes[1].m, 2);
  EXPECT_DOUBLE_EQ(sizes[1].per_k, (2 + 3) / 2.0 / 2);
  EXPECT_EQ(sizes[2].m, 4);
  EXPECT_DOUBLE_EQ(sizes[2].per_k, 2.5);
  EXPECT_DOUBLE_EQ(sizes[2].exponent, std::log(2.5) / std::log(4));
}

TEST(FillIn, disjoint_supports_have_exponent_one) {
  const auto sizes = union_sizes({{1}, {2}, {3}}, 1);
  ASSERT_EQ(sizes.back().m, 3);
  EXPECT_DOUBLE_EQ(sizes.back().exponent, 1);
}

TEST(FillIn, independent_union_counts_collisions) {
  EXPECT_DOUBLE_EQ(independent_union(100, 10, 1), 1);
  EXPECT_DOUBLE_EQ(independent_union(100, 10, 2), 1.9);
  EXPECT_NEAR(independent_union(100, 10, 1000), 10, 1e-9);
}

FillInRun fill_in(const std::string& data, int P) {
  const FillInOptions options{.source = {.data = data, .n = 2000, .steps = 2}, .density = 0.02};
  return gather_world("threads", P, [&](Communicator& comm) { return measure_fill_in(comm, options); })[0];
}

TEST(FillIn, union_grows_with_independent_supports_only) {
  for (const int P : {3, 8}) {
    const FillInRun same = fill_in("identical", P);
    EXPECT_EQ(same.unions.back().per_k, 1);
    EXPECT_EQ(same.unions.back().exponent, 0);
    const FillInRun other = fill_in("gaussian", P);
    EXPECT_NEAR(other.unions.back().per_k, independent_union(2000, 40, P), 0.05 * P);
  }
}

TEST(FillIn, only_union_presets_exceed_k) {
  const FillInRun run = fill_in("gaussian", 5);
  const std::map<std::string, double> updates(run.updates.begin(), run.updates.end());
  EXPECT_GT(updates.at("topka"), 4);
  EXPECT_EQ(updates.at("topka"), updates.at("topkdsa"));
  EXPECT_EQ(updates.at("topka"), run.unions.back().per_k);
  for (const char* preset : {"gtopk", "circulant", "spardl"}) EXPECT_LE(updates.at(preset), 1);
}

}  // namespace
}  // namespace oktopk::fill_in_test
