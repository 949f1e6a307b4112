// SPDX-License-Identifier: Apache-2.0
// What override rules look like, and what is said about those that do not.
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/tune/overrides.h"

namespace oktopk::overrides_parser_test {
namespace {

using Kind = Condition::Kind;

TEST(OverridesParser, reads_settings_and_conditions) {
  const Overrides overrides = Overrides::parse(
      " oktopk : n >= 1M , density<0.02 ;dense:n<64K;\n"
      "circulant[codec=elias_fano+bf16, skips=64,8,1 ,group=8]:P=16..64,k=1.5K,n<=1e6,k>3g ; ");
  ASSERT_EQ(overrides.rules().size(), 3U);
  EXPECT_EQ(
      overrides.rules()[0],
      (Rule{{.preset = "oktopk"}, {{Variable::n, Kind::at_least, 1048576}, {Variable::density, Kind::less, 0.02}}}));
  EXPECT_EQ(overrides.rules()[1], (Rule{{.preset = "dense"}, {{Variable::n, Kind::less, 65536}}}));
  EXPECT_EQ(overrides.rules()[2], (Rule{{.preset = "circulant",
                                         .codec = Codec{IndexCoding::elias_fano, ValueCoding::bf16},
                                         .skips = "64,8,1",
                                         .group = 8},
                                        {{Variable::ranks, Kind::range, 16, 64},
                                         {Variable::k, Kind::equal, 1536},
                                         {Variable::n, Kind::at_most, 1e6},
                                         {Variable::k, Kind::more, 3 * 0x1p30}}}));
}

TEST(OverridesParser, reads_nothing_as_no_rules) {
  EXPECT_TRUE(Overrides::parse("").empty());
  EXPECT_TRUE(Overrides::parse("  \n").empty());
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
      {"dense:n<3; ;", "character 12 (\";\")", "expected a preset"},
      {"dense n<3", "character 7 (\"n<3\")", "expected '[', ':', ';' or the end"},
      {"dense:n<3 k<4", "character 11 (\"k<4\")", "expected ',', ';' or the end"},
      {"dense:m<3", "character 7 (\"m<3\")", "expected n, k, density or P"},
      {"dense:", "character 7 (the end)", "expected n, k, density or P"},
      {"dense:n", "character 8 (the end)", "expected <, <=, >, >= or ="},
      {"dense:n!3", "character 8 (\"!3\")", "expected <, <=, >, >= or ="},
      {"dense:n<", "character 9 (the end)", "expected a number"},
      {"dense:n<-3", "character 9 (\"-3\")", "expected a number"},
      {"dense:n<3T", "character 10 (\"T\")", "expected K, M, G or the end of the number"},
      {"dense:n<1e999", "character 9 (\"1e999\")", "not too large"},
      {"dense:n=9..3", "character 10 (\"..3\")", "the range ends before it begins"},
      {"dense:n=9..", "character 12 (the end)", "expected a number"},
      {"dense:n<9..12", "character 10 (\"..12\")", "expected ',', ';' or the end"},
      {"circulant[size=3]", "character 11 (\"size=3]\")", "expected codec=, skips= or group="},
      {"circulant[]", "character 11 (\"]\")", "expected codec=, skips= or group="},
      {"circulant[group=3", "character 18 (the end)", "expected ',' or ']'"},
      {"circulant[group=0]", "character 17 (\"0]\")", "expected a number of ranks"},
      {"circulant[group=x]", "character 17 (\"x]\")", "expected a number of ranks"},
      {"circulant[codec=zip]", "character 17 (\"zip]\")", "zip"},
      {"circulant[skips=8,9,1]", "character 17 (\"8,9,1]\")", "8,9,1"},
      {"circulant[skips=slow]", "character 17 (\"slow]\")", "expected direct, halving"},
      {"circulant[group=2,group=3]", "character 25 (\"3]\")", "group is given twice"},
      {"topka[skips=direct]", "character 13", "only circulant has skips, not topka"},
      {"dense[codec=elias_fano]", "character 13", "dense has no indices"},
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

}  // namespace
}  // namespace oktopk::overrides_parser_test
