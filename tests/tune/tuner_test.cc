// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/tuner.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"

namespace oktopk::tuner_test {
namespace {

const Problem kProblem{.n = 25e6, .k = 25e4, .P = 16};

// Makes steps with the present choice, each `factor` times as long as predicted, until a review is due.
bool run_until_review(Tuner& tuner, double factor, double arrived = 0, double merged = 0) {
  const double seconds = tuner.choice().seconds * factor;
  while (true) {
    tuner.observe(seconds, arrived, merged);
    if (tuner.is_review_due()) return tuner.review(tuner.summary());
  }
}

TEST(Tuner, starts_with_the_best_prediction_and_stays_while_steps_take_as_long) {
  Tuner tuner(kProblem, {}, {});
  const Method method = rank_candidates(kProblem, {}, {}).front().method;
  EXPECT_EQ(tuner.choice().method, method);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(run_until_review(tuner, 1.05));
  EXPECT_EQ(tuner.choice().method, method);
}

TEST(Tuner, reviews_rarely) {
  Tuner tuner(kProblem, {}, {});
  std::vector<int> reviews;
  for (int step = 1; step <= 4096; ++step) {
    tuner.observe(tuner.choice().seconds, 0, 0);
    if (!tuner.is_review_due()) continue;
    reviews.push_back(step);
    tuner.review(tuner.summary());
  }
  EXPECT_EQ(reviews, (std::vector<int>{16, 64, 256, 1024, 2048, 3072, 4096}));
}

TEST(Tuner, leaves_a_choice_that_disappoints_and_comes_back_from_a_worse_one) {
  Tuner tuner(kProblem, {}, {.presets = {"circulant"}});
  ASSERT_EQ(tuner.choice().method.preset, "circulant");
  EXPECT_TRUE(run_until_review(tuner, 50));
  EXPECT_EQ(tuner.choice().method.preset, "dense");
  // Dense turns out to be even slower.
  EXPECT_TRUE(run_until_review(tuner, 50));
  EXPECT_EQ(tuner.choice().method.preset, "circulant");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(run_until_review(tuner, 50));
}

TEST(Tuner, corrects_the_callers_dense_apart_from_ours) {
  const Problem problem{.n = 1e4, .k = 1e4, .P = 2};
  const ChoiceOptions options{.presets = {"topka"}, .external_dense = true};
  const double ours =
      price({.preset = "dense", .codec = {IndexCoding::coo32, ValueCoding::bf16}}, problem, {}, options).seconds;
  Profile profile;
  profile.external_dense = {.latency = ours / 2, .per_byte = 0};
  Tuner tuner(problem, profile, options);
  ASSERT_TRUE(tuner.choice().external);
  EXPECT_TRUE(run_until_review(tuner, 10));  // were both corrected, the caller's would stay
  EXPECT_EQ(to_string(tuner.choice().method), "dense bf16");
  EXPECT_FALSE(run_until_review(tuner, 1));
}

TEST(Tuner, takes_an_external_dense_as_soon_as_one_of_ours_disappoints) {
  Profile profile;
  const ChoiceOptions options{.external_dense = true};
  const double best = rank_candidates(kProblem, profile, options).front().seconds;
  profile.external_dense = {.latency = 3 * best, .per_byte = 0};
  Tuner tuner(kProblem, profile, options);
  ASSERT_FALSE(tuner.choice().external);
  EXPECT_TRUE(run_until_review(tuner, 20));  // and not each of the others first
  EXPECT_TRUE(tuner.choice().external);
  EXPECT_FALSE(run_until_review(tuner, 1.1));
  EXPECT_TRUE(run_until_review(tuner, 50)) << "ours are better than that after all";
  EXPECT_FALSE(tuner.choice().external);
}

TEST(Tuner, reviews_soon_after_a_change) {
  Tuner tuner(kProblem, {}, {.presets = {"circulant"}});
  int steps = 0;
  for (int changes = 0; changes < 2; ++steps) {
    tuner.observe(tuner.choice().seconds * 50, 0, 0);
    if (tuner.is_review_due() && tuner.review(tuner.summary())) ++changes;
  }
  EXPECT_EQ(steps, 32);
}

TEST(Tuner, keeps_what_a_rule_asks_for) {
  ChoiceOptions options;
  options.overrides = Overrides::parse("oktopk:n>=1M");
  Tuner tuner(kProblem, {}, options);
  EXPECT_EQ(tuner.choice().method.preset, "oktopk");
  EXPECT_FALSE(run_until_review(tuner, 50));
  EXPECT_EQ(tuner.choice().method.preset, "oktopk");
}

TEST(Tuner, sums_up_by_the_median_without_the_first_four_steps) {
  Tuner tuner(kProblem, {}, {});
  for (const double seconds : {9, 9, 9, 9, 1, 5, 2, 4, 3}) tuner.observe(seconds, 0, 0);
  EXPECT_EQ(tuner.summary()[0], 3);
}

TEST(Tuner, learns_the_union_curve) {
  Tuner tuner(kProblem, {}, {});
  const double u = Problem{.n = 25e6, .k = 25e4, .P = 16, .union_exponent = 0.4}.union_of(16);
  run_until_review(tuner, 1, 16 * 25e4, u);
  EXPECT_NEAR(tuner.problem().union_exponent, 0.4, 1e-9);
}

TEST(Tuner, charges_refreshes_as_it_sees_them) {
  const Problem problem{.n = 3e4, .k = 300, .P = 4};
  Tuner tuner(problem, {}, {.presets = {"circulant"}});
  ASSERT_EQ(tuner.choice().method.preset, "circulant");
  const double seconds = tuner.choice().seconds;
  const auto steps_until_review = [&](int every) {
    for (int step = 1;; ++step) {
      tuner.observe(seconds, 0, 0, step % every == 0);
      if (tuner.is_review_due()) return tuner.review(tuner.summary());
    }
  };
  EXPECT_FALSE(steps_until_review(100));
  EXPECT_TRUE(steps_until_review(3)) << "the time of most steps is the same, but a third refreshes";
  EXPECT_EQ(tuner.choice().method.preset, "dense");
}

TEST(Tuner, another_profile_starts_over) {
  Tuner tuner(kProblem, {}, {});
  run_until_review(tuner, 50);
  Profile fast;
  fast.machine.beta = 0;
  fast.machine.sigma = 1e-8;
  tuner.use(fast);
  EXPECT_TRUE(tuner.is_calibrated());
  EXPECT_EQ(tuner.choice().method.preset, "dense");
}

TEST(Tuner, continues_from_a_saved_state) {
  Profile profile;
  profile.inside = Machine{.alpha = 1e-6};
  Tuner tuner(kProblem, profile, {});
  run_until_review(tuner, 20, 4, 1);
  tuner.observe(1, 0, 0);
  StateWriter writer;
  tuner.save(writer);
  const Bytes state = writer.seal();
  StateReader reader(state);
  Tuner copy(kProblem, {}, {});
  copy.load(reader);
  reader.finish();
  EXPECT_EQ(copy.choice().method, tuner.choice().method);
  EXPECT_EQ(copy.problem().union_exponent, tuner.problem().union_exponent);
  EXPECT_EQ(copy.profile().inside->alpha, 1e-6);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(run_until_review(copy, 3), run_until_review(tuner, 3));
    EXPECT_EQ(copy.choice().method, tuner.choice().method);
  }
  StateWriter again;
  copy.save(again);
  StateWriter original;
  tuner.save(original);
  EXPECT_EQ(again.seal(), original.seal());
}

}  // namespace
}  // namespace oktopk::tuner_test
