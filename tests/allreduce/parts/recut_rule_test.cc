// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/recut_rule.h"

#include <gtest/gtest.h>

#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::recut_rule_test {
namespace {

using Load = std::vector<std::uint64_t>;

const Load kEven{100, 110, 90, 100};
const Load kUneven{310, 30, 30, 30};
const Cuts kCuts{0, 250, 500, 750, 1000};

// Steps from `from` on in which a recut is due, always with the same cuts and load.
std::vector<std::uint64_t> due(RecutRule& rule, std::uint64_t from, std::uint64_t to, const Cuts& cuts,
                               const Load& load) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = from; step < to; ++step)
    if (rule.is_due(step, cuts, load)) steps.push_back(step);
  return steps;
}

TEST(RecutRule, is_due_at_the_first_step_and_16_steps_after_the_last) {
  RecutRule rule;
  EXPECT_TRUE(rule.is_due(0, kCuts, kUneven));
  const Load less{200, 65, 65, 70};
  EXPECT_EQ(due(rule, 1, 18, kCuts, less), (std::vector<std::uint64_t>{16}));
}

TEST(RecutRule, is_not_due_while_the_load_is_even_or_there_is_none) {
  RecutRule rule;
  EXPECT_TRUE(due(rule, 0, 100, kCuts, kEven).empty());
  EXPECT_TRUE(due(rule, 100, 120, kCuts, {0, 0, 0, 0}).empty());
  EXPECT_TRUE(due(rule, 120, 200, kCuts, {3, 0, 0, 0}).empty());  // noise
  EXPECT_TRUE(rule.is_due(200, kCuts, kUneven));
}

TEST(RecutRule, is_due_ever_more_rarely_when_it_does_not_help) {
  RecutRule rule;
  EXPECT_EQ(due(rule, 0, 1100, kCuts, kUneven), (std::vector<std::uint64_t>{0, 32, 96, 224, 480, 736, 992}));
}

TEST(RecutRule, is_due_soon_again_when_the_last_one_helped) {
  RecutRule rule;
  due(rule, 0, 225, kCuts, kUneven);  // the last at 224, the pause is 256
  EXPECT_TRUE(due(rule, 225, 300, kCuts, kEven).empty());
  EXPECT_EQ(due(rule, 300, 301, kCuts, kUneven).size(), 1u);
}

// All load lies in a few indices: it takes several recuts to find them.
TEST(RecutRule, is_due_soon_again_when_the_load_came_into_a_narrower_region) {
  RecutRule rule;
  EXPECT_TRUE(rule.is_due(0, {0, 800, 900, 950, 1000}, kUneven));
  EXPECT_TRUE(due(rule, 1, 16, {0, 200, 400, 600, 1000}, kUneven).empty());
  EXPECT_TRUE(rule.is_due(16, {0, 200, 400, 600, 1000}, kUneven));
}

TEST(RecutRule, is_not_due_for_the_load_of_one_index) {
  RecutRule rule;
  EXPECT_TRUE(due(rule, 0, 300, {0, 1, 400, 700, 1000}, kUneven).empty());
  EXPECT_TRUE(due(rule, 300, 400, {0, 1, 1, 1, 1000}, {90, 0, 0, 10}).empty());
  EXPECT_TRUE(rule.is_due(400, {0, 1, 400, 700, 1000}, Load{310, 400, 30, 30}));
}

TEST(RecutRule, save_and_load_go_on_alike) {
  for (const std::uint64_t stop : {1U, 10U, 33U, 100U, 250U}) {
    RecutRule rule;
    due(rule, 0, stop, kCuts, kUneven);
    StateWriter writer;
    rule.save(writer);
    const Bytes state = writer.seal();
    StateReader reader(state);
    RecutRule resumed;
    resumed.load(reader);
    EXPECT_EQ(due(resumed, stop, 1000, kCuts, kUneven), due(rule, stop, 1000, kCuts, kUneven));
  }
}

TEST(RecutRule, load_of_an_impossible_pause_throws) {
  for (const std::uint64_t pause : {0U, 15U, 257U}) {
    StateWriter writer;
    for (const std::uint64_t number : {std::uint64_t{5}, pause, std::uint64_t{1}, std::uint64_t{1}}) writer.put(number);
    const Bytes state = writer.seal();
    StateReader reader(state);
    RecutRule rule;
    EXPECT_THROW(rule.load(reader), UsageError);
  }
}

}  // namespace
}  // namespace oktopk::recut_rule_test
