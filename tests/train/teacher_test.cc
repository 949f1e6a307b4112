// SPDX-License-Identifier: Apache-2.0
#include "tools/train/teacher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::teacher_test {
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
  EXPECT_EQ(problem.name, "teacher");
  for (const Dataset* data : {&problem.train, &problem.test}) {
    EXPECT_EQ(data->shape, (Shape{16, 1, 1}));
    EXPECT_EQ(data->classes, 10);
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

}  // namespace
}  // namespace oktopk::teacher_test
