// SPDX-License-Identifier: Apache-2.0
// The three rules of oktopk's global threshold, without any communication.
#include "oktopk/allreduce/parts/thresholds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::sum_threshold_test {
namespace {

constexpr std::size_t kK = 1000;
constexpr std::uint64_t kBandEdge = 313;  // 0.25 k + 2 sqrt(k) = 313.2

SumThreshold made(ThresholdRule rule, float value = 2, int tau_prime = 8) {
  SumThreshold threshold(rule, tau_prime);
  threshold.set(value, 5 * kK, 0, kK);
  return threshold;
}

std::vector<float> gathered(std::size_t count, float threshold) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back((i % 2 == 0 ? -1.0F : 1.0F) * threshold *
                     (1 + 0.2F * static_cast<float>(i) / static_cast<float>(count)));
  return values;
}

constexpr ThresholdRule kRules[] = {ThresholdRule::paper, ThresholdRule::published, ThresholdRule::steered};

TEST(SumThreshold, is_unknown_at_first_and_for_another_k) {
  for (const ThresholdRule rule : kRules) {
    EXPECT_TRUE(SumThreshold(rule, 8).is_unknown(0, kK));
    const SumThreshold threshold = made(rule);
    EXPECT_FALSE(threshold.is_unknown(1, kK));
    EXPECT_TRUE(threshold.is_unknown(1, kK + 1));
    EXPECT_EQ(threshold.value(), 2);
  }
}

// As after a gradient of zeros: a threshold of zero would let everything through for tau' steps.
TEST(SumThreshold, set_with_fewer_than_k_sums_leaves_it_unknown) {
  for (const ThresholdRule rule : kRules) {
    SumThreshold threshold(rule, 8);
    threshold.set(0, 0, 0, kK);
    EXPECT_TRUE(threshold.is_unknown(1, kK));
    threshold.set(0.5F, kK - 1, 1, kK);
    EXPECT_TRUE(threshold.is_unknown(2, kK));
    threshold.set(0.5F, kK, 2, kK);
    EXPECT_FALSE(threshold.is_unknown(3, kK));
  }
}

TEST(SumThreshold, paper_and_published_evaluate_every_tau_prime_and_refute_nothing) {
  for (const ThresholdRule rule : {ThresholdRule::paper, ThresholdRule::published}) {
    SumThreshold threshold = made(rule);
    for (std::uint64_t step = 1; step < 33; ++step) {
      EXPECT_EQ(threshold.is_unknown(step, kK), step % 8 == 0) << step;
      EXPECT_FALSE(threshold.is_refuted(step, 100 * kK, kK));
    }
  }
}

TEST(SumThreshold, observe_by_the_paper_changes_nothing) {
  SumThreshold threshold = made(ThresholdRule::paper);
  for (const std::size_t count : {0U, 10U, 9999U}) threshold.observe(gathered(count, 2), kK);
  EXPECT_EQ(threshold.value(), 2);
}

TEST(SumThreshold, observe_as_published_moves_by_8_in_1000_beyond_a_third) {
  const auto after = [](std::size_t count) {
    SumThreshold threshold = made(ThresholdRule::published);
    threshold.observe(gathered(count, 2), kK);
    return threshold.value();
  };
  EXPECT_EQ(after(1000), 2);
  EXPECT_EQ(after(667), 2);
  EXPECT_EQ(after(1333), 2);
  EXPECT_FLOAT_EQ(after(666), 2 / 1.008F);
  EXPECT_FLOAT_EQ(after(1334), 2 * 1.008F);
  EXPECT_FLOAT_EQ(after(50000), 2 * 1.008F);
}

TEST(SumThreshold, observe_steered_moves_towards_k) {
  const auto after = [](std::size_t count) {
    SumThreshold threshold = made(ThresholdRule::steered);
    threshold.observe(gathered(count, 2), kK);
    return threshold.value();
  };
  EXPECT_FLOAT_EQ(after(1000), 2);
  EXPECT_GT(after(1200), 2);
  EXPECT_GT(after(1300), after(1200));
  EXPECT_LT(after(1300), 2.2F);
  EXPECT_LT(after(800), 2);
  EXPECT_EQ(after(0), 2);
}

// Sums that one step leaves come in the next: two counts that make up for each other ask for
// nothing.
TEST(SumThreshold, observe_steered_takes_the_mean_of_two_counts) {
  SumThreshold threshold = made(ThresholdRule::steered);
  threshold.observe(gathered(1250, 2), kK);
  const float once = threshold.value();
  threshold.observe(gathered(800, once), kK);
  EXPECT_NEAR(threshold.value(), once, 1e-5);
}

TEST(SumThreshold, is_refuted_beyond_the_band_only) {
  for (const std::uint64_t reached : {kK - kBandEdge, kK, kK + kBandEdge})
    EXPECT_FALSE(made(ThresholdRule::steered).is_refuted(1, reached, kK)) << reached;
  for (const std::uint64_t reached : {std::uint64_t{0}, kK - kBandEdge - 1, kK + kBandEdge + 1})
    EXPECT_TRUE(made(ThresholdRule::steered).is_refuted(1, reached, kK)) << reached;
  EXPECT_NEAR(SumThreshold::most_gathered(kK), 1000 + 313.2, 0.1);
}

// The step of the next planned evaluation after `from`, seen by a count that is off, but inside of
// the band.
std::uint64_t next_planned(SumThreshold threshold, std::uint64_t from) {
  std::uint64_t step = from;
  while (!threshold.is_refuted(++step, kK + 300, kK)) {
  }
  return step;
}

TEST(SumThreshold, interval_doubles_up_to_16_tau_prime_while_counts_are_near_k) {
  SumThreshold threshold = made(ThresholdRule::steered);
  std::uint64_t last = 0;
  for (const std::uint64_t interval : {8U, 16U, 32U, 64U, 128U, 128U, 128U}) {
    EXPECT_EQ(next_planned(threshold, last), last + interval);
    for (std::uint64_t step = last + 1; step <= last + interval; ++step)
      EXPECT_FALSE(threshold.is_refuted(step, kK + 10, kK));
    last += interval;
  }
}

TEST(SumThreshold, interval_halves_when_a_count_was_off) {
  SumThreshold threshold = made(ThresholdRule::steered);
  std::uint64_t last = 0;
  for (const std::uint64_t interval : {4U, 2U, 1U, 1U}) {
    EXPECT_TRUE(threshold.is_refuted(++last, 5 * kK, kK));
    threshold.set(2, 5 * kK, last, kK);
    EXPECT_EQ(next_planned(threshold, last), last + interval);
  }
}

TEST(SumThreshold, set_steered_moves_on_with_the_trend_of_two_evaluations) {
  SumThreshold threshold = made(ThresholdRule::steered, 2);
  threshold.set(2 * std::exp(0.4F), 5 * kK, 4, kK);  // 0.1 per step
  EXPECT_NEAR(threshold.value(), 2 * std::exp(0.5), 1e-5);
  threshold.observe(gathered(kK, threshold.value()), kK);
  EXPECT_NEAR(threshold.value(), 2 * std::exp(0.6), 1e-5);
  for (const ThresholdRule rule : {ThresholdRule::paper, ThresholdRule::published}) {
    SumThreshold plain = made(rule, 2);
    plain.set(3, 5 * kK, 4, kK);
    EXPECT_EQ(plain.value(), 3);
  }
}

TEST(SumThreshold, set_after_a_jump_has_no_trend) {
  SumThreshold threshold = made(ThresholdRule::steered, 2);
  threshold.set(2000, 5 * kK, 4, kK);
  EXPECT_EQ(threshold.value(), 2000);
}

TEST(SumThreshold, set_after_a_needless_evaluation_counts_the_trend_from_there) {
  SumThreshold threshold = made(ThresholdRule::steered, 2);
  EXPECT_FALSE(threshold.is_refuted(8, kK, kK));  // planned, and not needed
  threshold.set(2 * std::exp(0.4F), 5 * kK, 12, kK);
  EXPECT_NEAR(threshold.value(), 2 * std::exp(0.5), 1e-5);
}

TEST(SumThreshold, load_refuses_numbers_that_are_none) {
  const auto refuses = [](float value, float exact, double trend, std::uint64_t interval) {
    StateWriter state;
    state.put(value);
    state.put(exact);
    state.put(trend);
    state.put(0.0);
    state.put(true);
    state.put(std::uint64_t{kK});
    state.put(std::uint64_t{3});
    state.put(interval);
    const Bytes sealed = state.seal();
    StateReader reader(sealed);
    SumThreshold threshold(ThresholdRule::steered, 8);
    try {
      threshold.load(reader);
    } catch (const UsageError&) {
      return true;
    }
    return false;
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(refuses(1, 1, 0, 8));
  EXPECT_TRUE(refuses(nan, 1, 0, 8));
  EXPECT_TRUE(refuses(infinity, 1, 0, 8));
  EXPECT_TRUE(refuses(-1, 1, 0, 8));
  EXPECT_TRUE(refuses(1, nan, 0, 8));
  EXPECT_TRUE(refuses(1, 1, double{nan}, 8));
  EXPECT_TRUE(refuses(1, 1, 0, 0));
}

}  // namespace
}  // namespace oktopk::sum_threshold_test
