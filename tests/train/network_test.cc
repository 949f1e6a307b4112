// SPDX-License-Identifier: Apache-2.0
#include "tools/train/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "tools/train/teacher.h"

namespace oktopk::network_test {
namespace {

Dataset random_data(const Shape& shape, int classes, int samples) {
  Random random(3);
  Dataset data{.shape = shape, .classes = classes, .inputs = Matrix(shape.features(), samples)};
  for (float& x : data.inputs.reshaped()) x = static_cast<float>(random.normal());
  for (int i = 0; i < samples; ++i) data.labels.push_back(static_cast<int>(random.below(classes)));
  return data;
}

Batch whole(const Dataset& data) { return {.inputs = data.inputs, .labels = data.labels}; }

// A network with weights and what belongs to it; biases are not zero.
struct Student {
  Student(const std::string& spec, const Dataset& data)
      : network(make_network(spec, data.shape, data.classes)),
        weights(network->parameters()),
        gradient(network->parameters()) {
    network->initialise(weights, 1);
    Random random(2);
    for (float& w : weights)
      if (w == 0) w = static_cast<float>(0.1 * random.normal());
  }
  double step(const Batch& batch, const TensorReady& ready = {}) {
    return network->gradient(weights, batch, gradient, ready);
  }

  std::unique_ptr<Network> network;
  std::vector<float> weights;
  std::vector<float> gradient;
};

class NetworkGradient : public testing::TestWithParam<std::pair<std::string, Shape>> {
 protected:
  std::string spec() const { return GetParam().first; }
  Shape shape() const { return GetParam().second; }
};

// Along random directions: a coordinate alone can sit at a kink of a relu.
TEST_P(NetworkGradient, gradient_equals_central_differences) {
  const Dataset data = random_data(shape(), 3, 4);
  const Batch batch = whole(data);
  Student student(spec(), data);
  student.step(batch);
  const auto gradient = student.gradient;
  const auto weights = student.weights;
  Random random(4);
  for (int direction = 0; direction < 10; ++direction) {
    constexpr double kStep = 1e-3;
    std::vector<float> way;
    double expected = 0;
    for (const float g : gradient) {
      // Half of it follows the gradient, so that the slope is not lost in the rounding of the loss.
      way.push_back(g + static_cast<float>(0.1 * random.normal()));
      expected += static_cast<double>(way.back()) * g;
    }
    const auto loss_at = [&](double length) {
      for (std::size_t i = 0; i < weights.size(); ++i)
        student.weights[i] = static_cast<float>(weights[i] + length * way[i]);
      return student.step(batch);
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(slope, expected, 2e-3 * std::fabs(expected) + 1e-4) << direction;
  }
}

TEST_P(NetworkGradient, ready_announces_every_tensor_once_last_first_and_final) {
  const Dataset data = random_data(shape(), 3, 5);
  Student student(spec(), data);
  const auto& tensors = student.network->tensors();
  std::vector<std::size_t> order;
  std::vector<std::vector<float>> announced;
  student.gradient.assign(student.gradient.size(), std::numeric_limits<float>::quiet_NaN());
  const auto values = [&](std::size_t t) {
    const auto begin =
        student.gradient.begin() + std::accumulate(tensors.begin(), tensors.begin() + static_cast<long>(t), 0L);
    return std::vector<float>(begin, begin + tensors[t]);
  };
  student.step(whole(data), [&](std::size_t t) {
    order.push_back(t);
    announced.push_back(values(t));
  });
  ASSERT_EQ(order.size(), tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(order[i], tensors.size() - 1 - i);
    EXPECT_EQ(announced[i], values(order[i]));  // not if NaN is left
  }
}

TEST_P(NetworkGradient, gradient_again_gives_the_same_bits_whatever_came_before) {
  const Dataset data = random_data(shape(), 3, 300);
  Batch batch;
  take_batch(data, std::vector<std::uint32_t>{5, 299, 5, 17, 0, 1, 2}, batch);
  Student student(spec(), data);
  const double loss = student.step(batch);
  const auto gradient = student.gradient;
  student.network->evaluate(student.weights, data);
  student.step(whole(data));
  EXPECT_EQ(student.step(batch), loss);
  EXPECT_EQ(student.gradient, gradient);
  Student other(spec(), data);
  EXPECT_EQ(other.step(batch), loss);
  EXPECT_EQ(other.gradient, gradient);
}

TEST_P(NetworkGradient, evaluate_equals_the_loss_of_gradient) {
  for (const int samples : {1, 256, 300, 600}) {
    const Dataset data = random_data(shape(), 3, samples);
    Student student(spec(), data);
    EXPECT_NEAR(student.network->evaluate(student.weights, data).loss, student.step(whole(data)), 1e-5) << samples;
  }
}

TEST_P(NetworkGradient, gradient_of_a_batch_is_the_mean_of_its_parts) {
  const Dataset data = random_data(shape(), 3, 6);
  Student student(spec(), data);
  student.step(whole(data));
  const auto gradient = student.gradient;
  std::vector<double> mean(gradient.size());
  for (std::uint32_t first = 0; first < 6; first += 2) {
    Batch part;
    take_batch(data, std::vector{first, first + 1}, part);
    student.step(part);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += student.gradient[i] / 3.0;
  }
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(gradient[i], mean[i], 1e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(All, NetworkGradient,
                         testing::Values(std::pair("mlp:6,5", Shape{7, 1, 1}), std::pair("mlp:1", Shape{2, 2, 1}),
                                         std::pair("conv:2,3", Shape{1, 8, 8}), std::pair("conv:3,2", Shape{2, 9, 11})),
                         [](const auto& row) { return "network_" + std::to_string(row.index); });

TEST(Network, initialise_same_seed_gives_the_same_weights) {
  const auto network = make_network("mlp:6,5", {7, 1, 1}, 3);
  std::vector<float> a(network->parameters(), 9), b(network->parameters(), 8);
  network->initialise(a, 1);
  network->initialise(b, 1);
  EXPECT_EQ(a, b);
  network->initialise(b, 2);
  EXPECT_NE(a, b);
}

TEST(Network, evaluate_counts_the_samples_whose_label_has_the_largest_logit) {
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(make_dense(2, 2));
  Network network("identity", std::move(layers));
  const Dataset data{.shape = {2, 1, 1},
                     .classes = 2,
                     .inputs = (Matrix(2, 4) << 3, 0, 1, 1, 0, 3, 0, 0).finished(),
                     .labels = {0, 1, 1, 0}};
  EXPECT_EQ(network.evaluate(std::vector<float>{1, 0, 0, 1, 0, 0}, data).accuracy, 0.75);
}

TEST(Network, plain_descent_learns_the_teacher) {
  const LearningProblem problem =
      make_teacher({.features = 16, .classes = 4, .hidden = 8, .train = 2048, .test = 512, .seed = 3});
  Student student("mlp:24", problem.train);
  const auto before = student.network->evaluate(student.weights, problem.test);
  std::vector<std::uint32_t> samples;
  Batch batch;
  for (std::uint64_t step = 0; step < 400; ++step) {
    draw_samples(problem.train.size(), 1, step, 0, 16, samples);
    take_batch(problem.train, samples, batch);
    student.step(batch);
    for (std::size_t i = 0; i < student.weights.size(); ++i) student.weights[i] -= 0.1F * student.gradient[i];
  }
  const auto after = student.network->evaluate(student.weights, problem.test);
  EXPECT_LT(after.loss, 0.6 * before.loss);
  EXPECT_GT(after.loss, problem.floor);
  EXPECT_GT(after.accuracy, before.accuracy + 0.2);
}

TEST(Network, wrong_sizes_throw) {
  const Dataset data = random_data({7, 1, 1}, 3, 4);
  Student student("mlp:6", data);
  std::vector<float> short_one(student.weights.size() - 1);
  EXPECT_THROW(student.network->initialise(short_one, 1), UsageError);
  EXPECT_THROW(student.network->gradient(short_one, whole(data), student.gradient), UsageError);
  EXPECT_THROW(student.network->gradient(student.weights, whole(data), short_one), UsageError);
  EXPECT_THROW(student.network->evaluate(student.weights, random_data({8, 1, 1}, 3, 4)), UsageError);
  EXPECT_THROW(student.step(Batch{.inputs = Matrix(7, 0)}), UsageError);
}

TEST(Network, layers_that_do_not_fit_throw) {
  std::vector<std::unique_ptr<Layer>> layers;
  EXPECT_THROW(Network("empty", std::move(layers)), UsageError);
  std::vector<std::unique_ptr<Layer>> others;
  others.push_back(make_dense(2, 3));
  others.push_back(make_relu(4));
  EXPECT_THROW(Network("odd", std::move(others)), UsageError);
}

}  // namespace
}  // namespace oktopk::network_test
