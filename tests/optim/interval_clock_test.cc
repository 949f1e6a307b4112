// SPDX-License-Identifier: Apache-2.0
// Intervals, the learning rates and the weight decay in them, against plain sums and products.
#include "oktopk/optim/interval_clock.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::interval_clock_test {
namespace {

float rate_at(int step) { return 0.1F / static_cast<float>(step); }

void arrive(IntervalClock& clock, Index i) { clock.last()[i] = clock.now(); }

double rate_of(IntervalClock& clock, Index i) { return rate_since(clock.view(), clock.last()[i]); }

double kept_of(IntervalClock& clock, Index i) {
  return kept_since(clock.view(), std::max(clock.last()[i], clock.caught_up()));
}

TEST(IntervalClock, interval_counts_steps_since_the_arrival) {
  IntervalClock clock(3, 0);
  for (int step = 1; step <= 5; ++step) {
    clock.tick(rate_at(step));
    if (step == 2) arrive(clock, 1);
    if (step == 5) arrive(clock, 2);
  }
  EXPECT_EQ(clock.now(), 5u);
  EXPECT_EQ(clock.interval(0), 5u);
  EXPECT_EQ(clock.interval(1), 3u);
  EXPECT_EQ(clock.interval(2), 0u);
}

TEST(IntervalClock, rate_is_the_sum_over_the_interval_and_exact_for_one_step) {
  IntervalClock clock(2, 0);
  double sum = 0;
  for (int step = 1; step <= 1000; ++step) {
    clock.tick(rate_at(step));
    sum += rate_at(step);
    EXPECT_EQ(rate_of(clock, 1), rate_at(step));
    arrive(clock, 1);
    EXPECT_EQ(rate_of(clock, 1), rate_at(step));
  }
  EXPECT_FLOAT_EQ(static_cast<float>(rate_of(clock, 0)), static_cast<float>(sum));
}

TEST(IntervalClock, decay_is_the_product_over_the_interval_and_exact_for_one_step) {
  IntervalClock clock(2, 0.5F);
  double product = 1;
  for (int step = 1; step <= 100; ++step) {
    clock.tick(rate_at(step));
    product *= 1 - rate_at(step) * 0.5;
    EXPECT_EQ(kept_of(clock, 1), decay_of_one_step(rate_at(step), 0.5));
    arrive(clock, 1);
    EXPECT_EQ(kept_of(clock, 1), 1);
  }
  EXPECT_NEAR(kept_of(clock, 0), product, 1e-12);
}

// 10^-700 is no double, but its ratios are.
TEST(RateHistory, decay_of_many_steps_does_not_underflow) {
  RateHistory history;
  for (int step = 1; step <= 700; ++step) history.tick(0.5, 1.8);
  EXPECT_GT(history.rescalings(), 0u);
  EXPECT_NEAR(kept_since(history.view(), 698), 0.01, 1e-12);
  EXPECT_EQ(kept_since(history.view(), 0), 0);
  EXPECT_EQ(kept_between(history.totals().data(), 1, 2), 1);  // both forgotten
}

TEST(IntervalClock, catch_up_applies_each_decay_once) {
  IntervalClock clock(2, 0.5F);
  std::vector<float> weights = {1, 1};
  double product = 1;
  for (int step = 1; step <= 30; ++step) {
    clock.tick(rate_at(step));
    product *= 1 - rate_at(step) * 0.5;
    if (step % 7 == 0) clock.catch_up(weights);
    if (step % 5 == 0) {
      weights[1] *= static_cast<float>(kept_of(clock, 1));
      arrive(clock, 1);
    }
  }
  for (int twice = 0; twice < 2; ++twice) {
    clock.catch_up(weights);
    for (const float w : weights) EXPECT_NEAR(w, product, 1e-6);
  }
  EXPECT_EQ(clock.interval(0), 30u);
}

TEST(IntervalClock, load_restores_all_and_refuses_another_n) {
  IntervalClock clock(3, 0.5F);
  std::vector<float> weights = {1, 1, 1};
  for (int step = 1; step <= 9; ++step) {
    clock.tick(step < 5 ? 0.25F : rate_at(step));
    if (step == 4) clock.catch_up(weights);
    if (step == 6) arrive(clock, 2);
  }
  StateWriter writer;
  clock.save(writer);
  const Bytes state = writer.seal();

  IntervalClock other(3, 0.5F);
  StateReader reader(state);
  other.load(reader);
  reader.finish();
  EXPECT_EQ(other.now(), clock.now());
  EXPECT_EQ(other.caught_up(), clock.caught_up());
  for (const Index i : {0u, 1u, 2u}) {
    EXPECT_EQ(other.interval(i), clock.interval(i));
    EXPECT_EQ(rate_of(other, i), rate_of(clock, i));
    EXPECT_EQ(kept_of(other, i), kept_of(clock, i));
  }
  IntervalClock larger(4, 0.5F);
  StateReader again(state);
  EXPECT_NE(message_of([&] { larger.load(again); }).find("n = 4"), std::string::npos);
}

TEST(RateHistory, load_refuses_stretches_that_make_no_sense) {
  const auto message = [](double rate, std::uint64_t steps) {
    StateWriter writer;
    writer.put(std::uint64_t{1});
    writer.put(steps);
    writer.put(rate);
    writer.put(2.0);
    const Bytes state = writer.seal();
    return message_of([&] {
      StateReader reader(state);
      RateHistory().load(reader);
    });
  };
  EXPECT_NE(message(0.5, 3).find("less than 1"), std::string::npos);
  EXPECT_NE(message(0.1, 0).find("a stretch of 0 steps"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::interval_clock_test
