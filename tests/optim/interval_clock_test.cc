// SPDX-License-Identifier: Apache-2.0
// Intervals, the learning rates and the weight decay in them, against plain sums and products.
#include "oktopk/optim/interval_clock.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::interval_clock_test {
namespace {

float rate_at(int step) { return 0.1F / static_cast<float>(step); }

TEST(IntervalClock, interval_counts_steps_since_the_arrival) {
  IntervalClock clock(3, 0);
  for (int step = 1; step <= 5; ++step) {
    clock.tick(rate_at(step));
    if (step == 2) clock.arrive(1);
    if (step == 5) clock.arrive(2);
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
    EXPECT_EQ(clock.rate_since(1), rate_at(step));
    clock.arrive(1);
    EXPECT_EQ(clock.rate_since(1), rate_at(step));
  }
  EXPECT_FLOAT_EQ(clock.rate_since(0), static_cast<float>(sum));
}

TEST(IntervalClock, decay_is_the_product_over_the_interval_and_exact_for_one_step) {
  IntervalClock clock(2, 0.5F);
  double product = 1;
  for (int step = 1; step <= 100; ++step) {
    clock.tick(rate_at(step));
    product *= 1 - rate_at(step) * 0.5;
    EXPECT_EQ(clock.decay_since(1), decay_of_one_step(rate_at(step), 0.5F));
    clock.arrive(1);
    EXPECT_EQ(clock.decay_since(1), 1);
  }
  EXPECT_FLOAT_EQ(clock.decay_since(0), static_cast<float>(product));
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
      weights[1] *= clock.decay_since(1);
      clock.arrive(1);
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
    clock.tick(rate_at(step));
    if (step == 4) clock.catch_up(weights);
    if (step == 6) clock.arrive(2);
  }
  StateWriter writer;
  clock.save(writer);
  const Bytes state = writer.seal();

  IntervalClock other(3, 0.5F);
  StateReader reader(state);
  other.load(reader);
  reader.finish();
  EXPECT_EQ(other.now(), clock.now());
  for (const Index i : {0u, 1u, 2u}) {
    EXPECT_EQ(other.interval(i), clock.interval(i));
    EXPECT_EQ(other.rate_since(i), clock.rate_since(i));
    EXPECT_EQ(other.decay_since(i), clock.decay_since(i));
  }
  IntervalClock larger(4, 0.5F);
  StateReader again(state);
  EXPECT_NE(message_of([&] { larger.load(again); }).find("n = 4"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::interval_clock_test
