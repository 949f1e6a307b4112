// SPDX-License-Identifier: Apache-2.0
// Intervals, the learning rates and the weight decay in them, against plain sums and products.
#include "oktopk/optim/interval_clock.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "tests/support/message.h"

namespace oktopk::interval_clock_test {
namespace {

float rate_at(int step) { return 0.1F / static_cast<float>(step); }

TEST(IntervalClock, rate_is_the_sum_and_decay_the_product_over_the_interval_both_exact_for_one_step) {
  IntervalClock clock;
  double sum = 0, product = 1;
  for (int step = 1; step <= 1000; ++step) {
    clock.tick(rate_at(step), 0.5);
    sum += rate_at(step);
    product *= 1 - rate_at(step) * 0.5;
    for (const std::uint32_t last : {clock.now() - 1, clock.now()})
      EXPECT_EQ(rate_since(clock.view(), last), rate_at(step));
    EXPECT_EQ(kept_since(clock.view(), clock.now() - 1), decay_of_one_step(rate_at(step), 0.5));
    EXPECT_EQ(kept_since(clock.view(), clock.now()), 1);
  }
  EXPECT_EQ(clock.now(), 1000u);
  EXPECT_FLOAT_EQ(static_cast<float>(rate_since(clock.view(), 0)), static_cast<float>(sum));
  EXPECT_NEAR(kept_since(clock.view(), 0), product, 1e-12);
}

// 10^-700 is no double, but its ratios are.
TEST(IntervalClock, decay_of_many_steps_does_not_underflow) {
  IntervalClock history;
  for (int step = 1; step <= 700; ++step) history.tick(0.5, 1.8);
  EXPECT_GT(history.rescalings(), 0u);
  EXPECT_NEAR(kept_since(history.view(), 698), 0.01, 1e-12);
  EXPECT_EQ(kept_since(history.view(), 0), 0);
  EXPECT_EQ(kept_between(history.totals().data(), 1, 2), 1);  // both forgotten
}

TEST(IntervalClock, load_restores_all) {
  IntervalClock clock;
  for (int step = 1; step <= 9; ++step) clock.tick(step < 5 ? 0.25F : rate_at(step), 0.5);
  StateWriter writer;
  clock.save(writer);
  const Bytes state = writer.seal();

  IntervalClock other;
  StateReader reader(state);
  other.load(reader, clock.now());
  reader.finish();
  EXPECT_EQ(other.now(), clock.now());
  EXPECT_EQ(other.runs().size(), 6u);
  for (std::uint32_t last = 0; last <= clock.now(); ++last) {
    EXPECT_EQ(rate_since(other.view(), last), rate_since(clock.view(), last));
    EXPECT_EQ(kept_since(other.view(), last), kept_since(clock.view(), last));
  }
}

// Totals at some steps are enough for coordinates that arrived there, also after old totals became infinite.
TEST(IntervalClock, a_jump_gives_the_bits_of_the_steps_that_it_replaces) {
  IntervalClock clock, other;
  constexpr std::uint32_t kSteps = 700, kKnown[] = {3, 500, 640};
  for (std::uint32_t step = 1; step <= kSteps; ++step) clock.tick(rate_at(static_cast<int>(step)) + 0.4, 1.8);
  ASSERT_GT(clock.rescalings(), 0u);
  const std::span<const StepTotals> totals = clock.totals();
  std::uint32_t made = 0;
  other.jump(0, totals[0]);
  for (const std::uint32_t step : kKnown) {
    other.jump(step - made, totals[step]);
    made = step;
  }
  EXPECT_TRUE(other.has_decayed());
  for (std::uint32_t step = made + 1; step <= kSteps; ++step) other.tick(rate_at(static_cast<int>(step)) + 0.4, 1.8);
  ASSERT_EQ(other.now(), kSteps);
  for (const std::uint32_t last : {0U, 3U, 500U, 640U, 641U, 699U}) {
    EXPECT_EQ(rate_since(other.view(), last), rate_since(clock.view(), last)) << last;
    EXPECT_EQ(kept_since(other.view(), last), kept_since(clock.view(), last)) << last;
  }
  EXPECT_NEAR(rate_since(other.view(), 570), rate_since(clock.view(), 570), 0.05 * rate_since(clock.view(), 570));
  for (const StepTotals& total : other.totals()) EXPECT_FALSE(std::isnan(total.kept));
}

TEST(IntervalClock, load_refuses_runs_that_make_no_sense) {
  const auto message = [](double rate, std::uint64_t steps) {
    StateWriter writer;
    writer.put(std::uint64_t{1});
    writer.put(steps);
    writer.put(rate);
    writer.put(2.0);
    const Bytes state = writer.seal();
    return message_of([&] {
      StateReader reader(state);
      IntervalClock().load(reader, 1000);
    });
  };
  EXPECT_NE(message(0.5, 3).find("less than 1"), std::string::npos);
  EXPECT_NE(message(0.1, 0).find("a run of 0 steps"), std::string::npos);
  // 24 bytes that would take 32 GiB.
  EXPECT_NE(message(0.1, 0x7fffffff).find("a run of 2147483647 steps"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::interval_clock_test
