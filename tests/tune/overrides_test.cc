// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/overrides.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/tune/choose.h"

namespace oktopk::overrides_test {
namespace {

constexpr double kMillion = 1 << 20;

Problem problem(double n, double density, int P) { return {.n = n, .k = n * density, .P = P}; }

TEST(Overrides, first_match_wins) {
  const Overrides overrides = Overrides::parse("oktopk:n>=1M,density<0.02; dense:n<64K; circulant:P>=16");
  const auto preset = [&](const Problem& p) {
    const Rule* rule = overrides.match(p);
    return rule == nullptr ? "" : rule->method.preset;
  };
  EXPECT_EQ(preset(problem(kMillion, 0.01, 64)), "oktopk");
  EXPECT_EQ(preset(problem(kMillion, 0.02, 64)), "circulant");
  EXPECT_EQ(preset(problem(kMillion - 1, 0.01, 8)), "");
  EXPECT_EQ(preset(problem(1000, 0.01, 64)), "dense");
  EXPECT_EQ(preset(problem(65536, 0.01, 16)), "circulant");
  EXPECT_EQ(preset(problem(65536, 0.01, 15)), "");
}

TEST(Overrides, bounds_are_kept_to_the_letter) {
  const auto matches = [](const char* text, const Problem& p) {
    return Overrides::parse(std::string("dense:") + text).match(p) != nullptr;
  };
  const Problem p = problem(1000, 0.03, 4);  // k = 30
  EXPECT_TRUE(matches("n<=1000,n>=1000,n=1000,n=1000..1000", p));
  EXPECT_FALSE(matches("n<1000", p));
  EXPECT_FALSE(matches("n>1000", p));
  EXPECT_TRUE(matches("k=30,density=0.03,P=4", p));
  EXPECT_TRUE(matches("n=10..1000,P=4..9", p));
  EXPECT_FALSE(matches("n=10..999", p));
  EXPECT_FALSE(matches("P=5..9", p));
  EXPECT_FALSE(matches("density>0.1", Problem{.n = 0, .k = 0, .P = 1}));
}

TEST(Overrides, rule_without_conditions_always_matches) {
  const Overrides overrides = Overrides::parse("topka");
  EXPECT_NE(overrides.match({}), nullptr);
  EXPECT_EQ(Overrides{}.match({}), nullptr);
}

TEST(Overrides, text_reads_back_as_the_same_rules) {
  for (const char* text : {"oktopk:n>=1M,density<0.02; dense:n<64K; "
                           "circulant[codec=elias_fano+bf16,skips=halving,group=8]:P>=16",
                           "circulant[skips=64,8,1]:n=1M..64M", "dense[codec=bf16]:k>1000,k<=3G", "topka",
                           "gtopk:density=0.001,n>1e-7,n<1234567890123", "spardl:n=0..1025K", ""}) {
    const Overrides overrides = Overrides::parse(text);
    EXPECT_EQ(Overrides::parse(to_string(overrides)), overrides) << to_string(overrides);
  }
  EXPECT_EQ(to_string(Overrides::parse(" circulant[ codec=elias_fano ]: n >= 1048576 ,P=3..4 ;")),
            "circulant[codec=elias_fano+fp32]:n>=1M,P=3..4");
}

TEST(Overrides, append_keeps_the_order) {
  Overrides overrides = Overrides::parse("dense:n<5");
  overrides.append(Overrides::parse("topka"));
  EXPECT_EQ(to_string(overrides), "dense:n<5; topka");
}

TEST(Overrides, come_first_among_the_candidates_and_leave_the_rest_to_the_tuner) {
  const Problem p = problem(16 * kMillion, 0.01, 16);
  const auto free = rank_candidates(p, {}, {});
  ASSERT_NE(free[0].method.preset, "oktopk");
  EXPECT_FALSE(free[0].overridden);
  ChoiceOptions options{.overrides = Overrides::parse("oktopk:n>=1M; circulant[codec=log8]:P=16")};
  const auto all = rank_candidates(p, {}, options);
  EXPECT_EQ(all[0].method.preset, "oktopk");
  EXPECT_TRUE(all[0].overridden);
  EXPECT_EQ(all.size(), free.size());  // the same, in another order
  EXPECT_EQ(all[1].method, free[0].method);
  const auto is_dense = [](const Candidate& c) { return c.method.preset == "dense"; };
  EXPECT_EQ(std::count_if(all.begin(), all.end(), is_dense), 1);

  const auto small = rank_candidates(problem(1000, 0.01, 16), {}, options);
  EXPECT_EQ(small[0].method.codec, (Codec{IndexCoding::coo32, ValueCoding::log8}));
  EXPECT_EQ(small.size(), free.size() + 1);  // beside the circulant that the tuner would take
}

TEST(Overrides, fix_skips_and_group_as_they_are_given) {
  const ChoiceOptions options{.groups = true, .overrides = Overrides::parse("circulant[skips=4,2,1,group=4]")};
  const auto all = rank_candidates(problem(kMillion, 0.01, 16), {}, options);
  EXPECT_EQ(all[0].method.skips, "4,2,1");
  EXPECT_EQ(all[0].method.group, 4);
  EXPECT_GT(all[0].inside, 0);
  EXPECT_THROW(rank_candidates(problem(kMillion, 0.01, 64), {}, options), UsageError);
}

}  // namespace
}  // namespace oktopk::overrides_test
