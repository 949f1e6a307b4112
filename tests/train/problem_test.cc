// SPDX-License-Identifier: Apache-2.0
#include "tools/train/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::problem_test {
namespace {

TeacherOptions small(std::uint64_t seed) {
  return {.features = 16, .classes = 10, .hidden = 16, .train = 2000, .test = 1500, .seed = seed};
}

TEST(Teacher, make_same_options_gives_the_same_problem_and_another_seed_does_not) {
  const auto a = make_teacher(small(1));
  const auto b = make_teacher(small(1));
  const auto c = make_teacher(small(2));
  EXPECT_EQ(a.train.inputs, b.train.inputs);
  EXPECT_EQ(a.train.labels, b.train.labels);
  EXPECT_EQ(a.test.labels, b.test.labels);
  EXPECT_EQ(a.floor, b.floor);
  EXPECT_NE(a.train.inputs, c.train.inputs);
  EXPECT_NE(a.train.labels, c.train.labels);
}

// As it must be on every machine.
TEST(Teacher, make_gives_pinned_samples) {
  const auto problem = make_teacher(small(1));
  const std::vector<int> first(problem.train.labels.begin(), problem.train.labels.begin() + 12);
  EXPECT_EQ(first, (std::vector{3, 0, 5, 6, 3, 4, 2, 2, 6, 9, 4, 3}));
  EXPECT_NEAR(problem.train.inputs(0, 0), -5.3949995, 1e-5);
  EXPECT_NEAR(problem.test.inputs(15, 1499), 0.17377093, 1e-6);
}

TEST(Teacher, make_has_the_sizes_asked_for) {
  const auto problem = make_teacher(small(1));
  EXPECT_EQ(problem.features(), 16);
  EXPECT_EQ(problem.classes, 10);
  for (const Batch* data : {&problem.train, &problem.test}) {
    EXPECT_EQ(data->inputs.rows(), 16);
    EXPECT_EQ(static_cast<std::size_t>(data->inputs.cols()), data->size());
  }
  EXPECT_EQ(problem.train.size(), 2000u);
  EXPECT_EQ(problem.test.size(), 1500u);
}

TEST(Teacher, make_larger_begins_with_the_smaller) {
  auto options = small(1);
  const auto problem = make_teacher(options);
  options.train = 700;
  const auto smaller = make_teacher(options);
  EXPECT_EQ(smaller.train.inputs, problem.train.inputs.leftCols(700));
  EXPECT_TRUE(std::equal(smaller.train.labels.begin(), smaller.train.labels.end(), problem.train.labels.begin()));
  EXPECT_EQ(smaller.test.labels, problem.test.labels);
}

TEST(Teacher, make_has_a_floor_well_above_zero_and_below_chance) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const double floor = make_teacher(small(seed)).floor;
    EXPECT_GT(floor, 0.5) << seed;
    EXPECT_LT(floor, 0.9) << seed;
  }
}

TEST(Teacher, make_has_all_classes_about_equally_often) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<int> counts(10);
    for (const int label : make_teacher(small(seed)).train.labels) ++counts.at(label);
    EXPECT_GT(std::ranges::min(counts), 2000 / 40) << seed;
    EXPECT_LT(std::ranges::max(counts), 2000 / 4) << seed;
  }
}

TEST(Teacher, make_has_inputs_of_decaying_variance) {
  const auto inputs = make_teacher(small(1)).train.inputs;
  const auto variance = [&](int j) { return inputs.row(j).squaredNorm() / 2000; };
  for (const int j : {1, 3, 15})
    EXPECT_NEAR(variance(j) / variance(0), std::pow(j + 1, -1.5), 0.12 * std::pow(j + 1, -1.5));
  EXPECT_NEAR(inputs.squaredNorm() / static_cast<float>(inputs.size()), 1, 0.05);
}

TEST(Teacher, make_of_nothing_throws) {
  EXPECT_THROW(make_teacher({.features = 0}), UsageError);
  EXPECT_THROW(make_teacher({.classes = 1}), UsageError);
  EXPECT_THROW(make_teacher({.hidden = 0}), UsageError);
  EXPECT_THROW(make_teacher({.train = 0}), UsageError);
  EXPECT_THROW(make_teacher({.test = -1}), UsageError);
}

using Samples = std::vector<std::uint32_t>;

// The global batch, rank after rank.
Samples draw_all(std::size_t size, std::uint64_t seed, std::uint64_t step, std::uint64_t ranks,
                 std::uint64_t per_rank) {
  Samples all, mine;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    draw_samples(size, seed, step, rank * per_rank, per_rank, mine);
    EXPECT_EQ(mine.size(), per_rank);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

TEST(DrawSamples, draw_on_other_numbers_of_ranks_gives_the_same_global_batch) {
  const Samples one = draw_all(1000, 5, 17, 1, 60);
  for (const std::uint64_t ranks : {2, 3, 5, 12}) EXPECT_EQ(draw_all(1000, 5, 17, ranks, 60 / ranks), one) << ranks;
}

TEST(DrawSamples, draw_other_step_or_seed_gives_other_samples) {
  const Samples samples = draw_all(1000, 5, 17, 2, 30);
  EXPECT_NE(draw_all(1000, 5, 18, 2, 30), samples);
  EXPECT_NE(draw_all(1000, 6, 17, 2, 30), samples);
}

TEST(DrawSamples, draw_many_reaches_all_samples_evenly) {
  std::vector<int> counts(50);
  for (std::uint64_t step = 0; step < 200; ++step)
    for (const std::uint32_t s : draw_all(50, 1, step, 3, 16)) ++counts.at(s);
  const auto [fewest, most] = std::ranges::minmax(counts);
  EXPECT_GT(fewest, 192 - 70);  // five deviations
  EXPECT_LT(most, 192 + 70);
}

TEST(DrawSamples, draw_from_nothing_throws) {
  Samples out;
  EXPECT_THROW(draw_samples(0, 1, 0, 0, 1, out), UsageError);
  EXPECT_THROW(draw_samples(9, 1, 0, 0, 0, out), UsageError);
}

Batch three_samples() {
  Batch data{.inputs = Matrix(2, 3), .labels = {0, 2, 1}};
  data.inputs << 1, 3, 5, 2, 4, 6;
  return data;
}

TEST(TakeBatch, take_gathers_columns_and_labels_in_order) {
  Batch batch;
  take_batch(three_samples(), Samples{2, 0, 2, 1}, batch);
  Matrix expected(2, 4);
  expected << 5, 1, 5, 3, 6, 2, 6, 4;
  EXPECT_EQ(batch.inputs, expected);
  EXPECT_EQ(batch.labels, (std::vector{1, 0, 1, 2}));
}

TEST(TakeBatch, take_again_reuses_the_memory) {
  Batch batch;
  take_batch(three_samples(), Samples{0, 1}, batch);
  const float* place = batch.inputs.data();
  take_batch(three_samples(), Samples{1, 2}, batch);
  EXPECT_EQ(batch.inputs.data(), place);
}

TEST(TakeBatch, take_sample_that_is_not_there_throws) {
  Batch batch;
  EXPECT_THROW(take_batch(three_samples(), Samples{3}, batch), UsageError);
}

}  // namespace
}  // namespace oktopk::problem_test
