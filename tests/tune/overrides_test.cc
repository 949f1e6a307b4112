// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/tune/candidates.h"

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
  EXPECT_NE(Overrides::parse("topka").match({}), nullptr);
  EXPECT_EQ(Overrides{}.match({}), nullptr);
}

TEST(Overrides, text_reads_back_as_the_same_rules) {
  for (const char* text :
       {"oktopk:n>=1M,density<0.02; dense:n<64K; "
        "circulant[codec=elias_fano+bf16,skips=halving,group=8]:P>=16",
        "circulant[skips=64,8,1]:n=1M..64M", "dense[codec=bf16]:k>1000,k<=3G", "topka",
        "gtopk:density=0.001,n>1e-7,n<1234567890123", "spardl:n=0..1025K", "circulant[skips=radix:4]:P>=16", ""}) {
    const Overrides overrides = Overrides::parse(text);
    EXPECT_EQ(Overrides::parse(to_string(overrides)), overrides) << to_string(overrides);
  }
  EXPECT_EQ(to_string(Overrides::parse(" circulant[ codec=elias_fano ]: n >= 1048576 ,P=3..4 ;")),
            "circulant[codec=elias_fano+fp32]:n>=1M,P=3..4");
  EXPECT_EQ(to_string(Overrides::parse("circulant[group=2, skips=radix:4]:P>=16")),
            "circulant[skips=radix:4,group=2]:P>=16");
  EXPECT_TRUE(Overrides::parse("  \n").empty());
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

TEST(OverridesParser, reads_settings_and_conditions) {
  const Overrides overrides = Overrides::parse(
      " oktopk : n >= 1M , density<0.02 ;dense:n<64K;\n"
      "circulant[codec=elias_fano+bf16, skips=64,8,1 ,group=8]:P=16..64,k=1.5K,n<=1e6,k>3g ; ");
  ASSERT_EQ(overrides.rules.size(), 3U);
  EXPECT_EQ(to_string(overrides),
            "oktopk:n>=1M,density<0.02; dense:n<64K; "
            "circulant[codec=elias_fano+bf16,skips=64,8,1,group=8]:P=16..64,k=1536,n<=1e+06,k>3G");
  EXPECT_EQ(overrides.rules[2].method, (PartialMethod{.preset = "circulant",
                                                      .codec = Codec{IndexCoding::elias_fano, ValueCoding::bf16},
                                                      .skips = "64,8,1",
                                                      .group = 8}));
  const auto& [method, least, most, text] = overrides.rules[2];
  EXPECT_EQ(least[3], 16);
  EXPECT_EQ(most[3], 64);
  EXPECT_EQ(least[1], std::nextafter(3 * 0x1p30, 1e300));  // the stricter of two bounds
  EXPECT_NEAR(most[1], 1536, 1e-5);
  EXPECT_EQ(most[0], 1e6);
}

TEST(OverridesParser, says_where_and_what_was_expected) {
  struct Case {
    const char* text;
    const char* place;
    const char* expected;
  };
  const Case cases[] = {
      {"nonsense:n<3", "character 1 (\"nonsense:n<3\")", "expected a preset: dense, topka"},
      {"dense:n<3;", "", ""},
      {"dense:n<3; ;", "", ""},
      {"dense:n<3; :n<4", "character 12 (\":n<4\")", "expected a preset"},
      {"dense n<3", "character 1 (\"dense n<3\")", "then '[', ':', ';' or the end"},
      {"dense:n<3 k<4", "character 9 (\"3 k<4\")", "expected a number"},
      {"dense:m<3", "character 7 (\"m<3\")", "expected n, k, density or P"},
      {"dense:", "character 7 (the end)", "expected n, k, density or P"},
      {"dense:n<3,", "character 11 (the end)", "expected n, k, density or P"},
      {"dense:n", "character 8 (the end)", "expected <, <=, >, >= or ="},
      {"dense:n!3", "character 7 (\"n!3\")", "then <, <=, >, >= or ="},
      {"dense:n<", "character 9 (the end)", "expected a number"},
      {"dense:n<-3", "character 9 (\"-3\")", "expected a number"},
      {"dense:n==3", "character 9 (\"=3\")", "expected a number"},
      {"dense:n<3T", "character 9 (\"3T\")", "expected a number, such as 64K"},
      {"dense:n<1e999", "character 9 (\"1e999\")", "expected a number"},
      {"dense:n=9..3", "character 10 (\"..3\")", "the range ends before it begins"},
      {"dense:n=9..", "character 12 (the end)", "expected a number"},
      {"dense:n<9..12", "character 9 (\"9..12\")", "expected a number"},
      {"circulant[size=3]", "character 11 (\"size=3]\")", "expected codec=, skips= or group="},
      {"circulant[]", "character 11 (\"]\")", "expected codec=, skips= or group="},
      {"circulant[group=3", "character 18 (the end)", "expected ']'"},
      {"circulant[group=3 :n<4", "character 18 (\" :n<4\")", "expected ']'"},
      {"circulant[group=3]x", "character 20 (the end)", "expected ']'"},
      {"circulant[group=0]", "character 11 (\"group=0]\")", "expected a number of ranks"},
      {"circulant[group=x]", "character 11 (\"group=x]\")", "expected a number of ranks"},
      {"circulant[codec=zip]", "character 11 (\"codec=zip]\")", "zip"},
      {"circulant[skips=8,9,1]", "character 11 (\"skips=8,9,1]\")", "8,9,1"},
      {"circulant[skips=slow]", "character 11 (\"skips=slow]\")", "expected direct, halving"},
      {"circulant[group=2,group=3]", "character 19 (\"group=3]\")", "group is given twice"},
      {"topka[skips=direct]", "character 7", "only circulant has skips, not topka"},
      {"dense[codec=elias_fano]", "character 7", "dense has no indices"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    try {
      Overrides::parse(c.text);
      EXPECT_STREQ(c.place, "") << "was accepted";
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_STRNE(c.place, "") << what;
      EXPECT_NE(what.find(std::string("overrides \"") + c.text + '"'), std::string::npos) << what;
      EXPECT_NE(what.find(c.place), std::string::npos) << what;
      EXPECT_NE(what.find(c.expected), std::string::npos) << what;
    }
  }
}

TEST(OverridesParser, reads_files) {
  const std::string file = testing::TempDir() + "oktopk_overrides_test";
  std::ofstream(file) << "dense:n<5;\ntopka\n";
  EXPECT_EQ(to_string(read_overrides(file)), "dense:n<5; topka");
  EXPECT_THROW(read_overrides("no/such/file"), UsageError);
}

}  // namespace
}  // namespace oktopk::overrides_test
