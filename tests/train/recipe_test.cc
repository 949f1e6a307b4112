// SPDX-License-Identifier: Apache-2.0
#include "tools/train/recipe.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"
#include "tests/support/message.h"

namespace oktopk::recipe_test {
namespace {

TEST(Recipe, learning_rate_at_cosine_falls_from_peak_to_zero) {
  Recipe recipe;
  recipe.learning_rate = 0.5F;
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 0, 100), 0.5F);
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 50, 100), 0.25F);
  EXPECT_NEAR(learning_rate_at(recipe, 100, 100), 0, 1e-7);
  recipe.schedule = "constant";
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 99, 100), 0.5F);
}

TEST(Recipe, learning_rate_not_given_is_the_optimisers_default) {
  Recipe recipe;
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 0, 10), 0.4F);
  recipe.optimiser = "momentum";
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 0, 10), 0.04F);
  recipe.optimiser = "adam";
  EXPECT_FLOAT_EQ(learning_rate_at(recipe, 0, 10), 0.004F);
}

TEST(Recipe, parse_start_takes_a_share_of_the_steps) {
  EXPECT_TRUE(parse_start("none", 100, 0.01).empty());
  const DensitySchedule dense = parse_start("dense:0.1", 100, 0.01);
  ASSERT_EQ(dense.size(), 1u);
  EXPECT_EQ(dense[0].steps, 10u);
  EXPECT_EQ(dense[0].density, 1);
  const DensitySchedule dgc = parse_start("dgc:0.3", 100, 0.01);
  ASSERT_EQ(dgc.size(), 3u);
  EXPECT_EQ(dgc[0].density, 0.25);
}

TEST(Recipe, parse_start_takes_that_of_the_library) {
  const DensitySchedule start = parse_start("recipe", 400, 0.01);
  const DensitySchedule expected = recipe(400).warmup;
  ASSERT_EQ(start.size(), expected.size());
  EXPECT_EQ(start[0].steps, 40u);
  EXPECT_EQ(start[0].steps, expected[0].steps);
  EXPECT_EQ(start[0].density, expected[0].density);
}

TEST(Recipe, parse_start_refuses_what_it_does_not_know) {
  for (const std::string text : {"", "dense", "dense:", "dense:x", "dense:2", "dense:0.1x", "dgc:-1", "cold:0.1"})
    EXPECT_NE(message_of([&] { parse_start(text, 100, 0.01); }).find("'" + text + "'"), std::string::npos) << text;
}

TEST(Recipe, check_names_what_is_wrong) {
  const auto refusal = [](auto change) {
    Recipe recipe;
    change(recipe);
    return message_of([&] { check(recipe); });
  };
  EXPECT_NE(refusal([](Recipe& r) { r.optimiser = "lion"; }).find("lion"), std::string::npos);
  EXPECT_NE(refusal([](Recipe& r) { r.schedule = "saw"; }).find("saw"), std::string::npos);
  EXPECT_NE(refusal([](Recipe& r) { r.adam = "eve"; }).find("eve"), std::string::npos);
  EXPECT_NE(refusal([](Recipe& r) { r.sparsify = "weights"; }).find("weights"), std::string::npos);
  EXPECT_NE(refusal([](Recipe& r) { r.learning_rate = -1; }).find("-1"), std::string::npos);
}

TEST(Recipe, to_string_says_what_differs_from_the_plainest) {
  Recipe recipe;
  recipe.optimiser = "adam";
  recipe.start = "none";
  EXPECT_EQ(to_string(recipe), "adam, interval-aware");
  recipe.sparsify = "updates";
  recipe.look_ahead = true;
  recipe.flush = false;
  recipe.start = "dense:0.1";
  EXPECT_EQ(to_string(recipe), "adam, updates, look-ahead, warm-up dense:0.1, no flush");
}

}  // namespace
}  // namespace oktopk::recipe_test
