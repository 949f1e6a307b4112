// SPDX-License-Identifier: Apache-2.0
#include "tools/train/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "tests/support/message.h"

namespace oktopk::network_test {
namespace {

Batch random_data(int features, int classes, int samples) {
  Random random(3);
  Batch data{.inputs = Matrix(features, samples), .labels = {}};
  for (float& x : data.inputs.reshaped()) x = static_cast<float>(random.normal());
  for (int i = 0; i < samples; ++i) data.labels.push_back(static_cast<int>(random.below(classes)));
  return data;
}

// A network with weights and what belongs to it; biases are not zero.
struct Student {
  Student(const std::string& spec, int features, int classes)
      : network(spec, features, classes), weights(network.parameters()), gradient(network.parameters()) {
    network.initialise(weights, 1);
    Random random(2);
    for (float& w : weights)
      if (w == 0) w = static_cast<float>(0.1 * random.normal());
  }
  double step(const Batch& batch) { return network.gradient(weights, batch, gradient); }

  Network network;
  std::vector<float> weights;
  std::vector<float> gradient;
};

class NetworkGradient : public testing::TestWithParam<std::pair<std::string, int>> {
 protected:
  std::string spec() const { return GetParam().first; }
  int features() const { return GetParam().second; }
};

// Along random directions: a coordinate alone can sit at a kink of a relu.
TEST_P(NetworkGradient, gradient_equals_central_differences) {
  const Batch data = random_data(features(), 3, 4);
  Student student(spec(), features(), 3);
  student.step(data);
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
      return student.step(data);
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(slope, expected, 2e-3 * std::fabs(expected) + 1e-4) << direction;
  }
}

TEST_P(NetworkGradient, gradient_writes_every_entry) {
  Student student(spec(), features(), 3);
  student.gradient.assign(student.gradient.size(), std::numeric_limits<float>::quiet_NaN());
  student.step(random_data(features(), 3, 5));
  for (const float g : student.gradient) EXPECT_FALSE(std::isnan(g));
}

TEST_P(NetworkGradient, gradient_again_gives_the_same_bits_whatever_came_before) {
  const Batch data = random_data(features(), 3, 300);
  Batch batch;
  take_batch(data, std::vector<std::uint32_t>{5, 299, 5, 17, 0, 1, 2}, batch);
  Student student(spec(), features(), 3);
  const double loss = student.step(batch);
  const auto gradient = student.gradient;
  student.network.evaluate(student.weights, data);
  student.step(data);
  EXPECT_EQ(student.step(batch), loss);
  EXPECT_EQ(student.gradient, gradient);
  Student other(spec(), features(), 3);
  EXPECT_EQ(other.step(batch), loss);
  EXPECT_EQ(other.gradient, gradient);
}

TEST_P(NetworkGradient, evaluate_equals_the_loss_of_gradient) {
  for (const int samples : {1, 256, 300, 600}) {
    const Batch data = random_data(features(), 3, samples);
    Student student(spec(), features(), 3);
    EXPECT_NEAR(student.network.evaluate(student.weights, data).loss, student.step(data), 1e-5) << samples;
  }
}

TEST_P(NetworkGradient, gradient_of_a_batch_is_the_mean_of_its_parts) {
  const Batch data = random_data(features(), 3, 6);
  Student student(spec(), features(), 3);
  student.step(data);
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

INSTANTIATE_TEST_SUITE_P(All, NetworkGradient, testing::Values(std::pair("mlp:6,5", 7), std::pair("mlp:1", 4)),
                         [](const auto& row) { return "network_" + std::to_string(row.index); });

TEST(Network, gradient_of_a_linear_network_is_known) {
  // relu passes the one positive sum: logits = {2x + 1, 0}.
  Network network("mlp:1", 1, 2);
  const Batch data{.inputs = Matrix::Constant(1, 1, 1.0F), .labels = {1}};
  const std::vector<float> weights = {2, 0, 1, 0, 1, 0};  // hidden weight and bias, output weights, output biases
  std::vector<float> gradient(6);
  const double loss = network.gradient(weights, data, gradient);
  const double p = 1 / (1 + std::exp(-3.0));
  EXPECT_NEAR(loss, 3 + std::log1p(std::exp(-3.0)), 1e-6);
  const std::vector<double> expected = {p, p, 2 * p, -2 * p, p, -p};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-6) << i;
}

TEST(Network, mlp_has_two_hidden_layers_by_default) {
  EXPECT_EQ(Network("mlp", 64, 10).parameters(), 50826u);
  EXPECT_EQ(Network("mlp:256,128", 64, 10).parameters(), 50826u);
  EXPECT_EQ(Network("mlp:300,100", 784, 10).parameters(), 266610u);
  EXPECT_EQ(Network("mlp:7", 12, 2).parameters(), 84u + 7 + 14 + 2);
}

TEST(Network, nonsense_throws_and_names_the_text_and_what_there_is) {
  for (const std::string spec :
       {"", "mpl", "mlp ", "mlp:", "mlp:0", "mlp:-5", "mlp:12,", "mlp:,12", "mlp:1,,2", "mlp:1x", "mlp:1 ,2",
        "mlp:65537", "mlp:99999999999999999999", "mlp:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "conv", "conv:8,16"}) {
    const std::string text = message_of([&] { Network(spec, 784, 10); });
    EXPECT_NE(text.find("'" + spec + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("mlp:H1"), std::string::npos) << text;
  }
}

TEST(Network, impossible_ends_throw) {
  EXPECT_THROW(Network("mlp", 0, 10), UsageError);
  EXPECT_THROW(Network("mlp", 64, 1), UsageError);
  EXPECT_THROW(Network("mlp:65536", 1 << 20, 10), UsageError);  // 2^36 weights
}

TEST(Network, initialise_same_seed_gives_the_same_weights) {
  const Network network("mlp:6,5", 7, 3);
  std::vector<float> a(network.parameters(), 9), b(network.parameters(), 8);
  network.initialise(a, 1);
  network.initialise(b, 1);
  EXPECT_EQ(a, b);
  network.initialise(b, 2);
  EXPECT_NE(a, b);
  for (const std::size_t bias : {42u, 47u, 78u}) EXPECT_EQ(a[bias], 0);
  EXPECT_NE(a[41], 0);
}

TEST(Network, plain_descent_learns_the_teacher) {
  const LearningProblem problem =
      make_teacher({.features = 16, .classes = 4, .hidden = 8, .train = 2048, .test = 512, .seed = 3});
  Student student("mlp:24", problem.features(), problem.classes);
  const auto before = student.network.evaluate(student.weights, problem.test);
  std::vector<std::uint32_t> samples;
  Batch batch;
  for (std::uint64_t step = 0; step < 400; ++step) {
    draw_samples(problem.train.size(), 1, step, 0, 16, samples);
    take_batch(problem.train, samples, batch);
    student.step(batch);
    for (std::size_t i = 0; i < student.weights.size(); ++i) student.weights[i] -= 0.1F * student.gradient[i];
  }
  const auto after = student.network.evaluate(student.weights, problem.test);
  EXPECT_LT(after.loss, 0.6 * before.loss);
  EXPECT_GT(after.loss, problem.floor);
  EXPECT_GT(after.accuracy, before.accuracy + 0.2);
}

TEST(Network, wrong_sizes_throw) {
  const Batch data = random_data(7, 3, 4);
  Student student("mlp:6", 7, 3);
  std::vector<float> short_one(student.weights.size() - 1);
  EXPECT_THROW(student.network.initialise(short_one, 1), UsageError);
  EXPECT_THROW(student.network.gradient(short_one, data, student.gradient), UsageError);
  EXPECT_THROW(student.network.gradient(student.weights, data, short_one), UsageError);
  EXPECT_THROW(student.network.evaluate(student.weights, random_data(8, 3, 4)), UsageError);
  EXPECT_THROW(student.step(Batch{.inputs = Matrix(7, 0)}), UsageError);
}

TEST(CrossEntropy, known_probabilities_give_their_logarithms) {
  Matrix logits(3, 2);
  logits << std::log(0.2F), 0, std::log(0.5F), 0, std::log(0.3F), 0;
  Matrix gradient;
  const LossSum sum = cross_entropy(logits, std::vector{1, 2}, gradient);
  EXPECT_NEAR(sum.loss, -std::log(0.5) + std::log(3.0), 1e-6);
  EXPECT_EQ(sum.correct, 1);
}

TEST(CrossEntropy, gradient_is_probability_minus_label_over_samples) {
  Matrix logits(3, 2), gradient(3, 2), expected(3, 2);
  logits << std::log(0.2F), 0, std::log(0.5F), 0, std::log(0.3F), 0;
  cross_entropy(logits, std::vector{1, 2}, gradient);
  expected << 0.1F, 1 / 6.0F, -0.25F, 1 / 6.0F, 0.15F, -2 / 6.0F;
  EXPECT_LT((gradient - expected).cwiseAbs().maxCoeff(), 1e-6);
}

TEST(CrossEntropy, huge_logits_stay_finite) {
  Matrix logits(2, 2), gradient(2, 2);
  logits << 1e4F, -1e4F, -1e4F, 1e4F;
  const LossSum sum = cross_entropy(logits, std::vector{0, 0}, gradient);
  EXPECT_NEAR(sum.loss, 2e4, 1e-3);
  EXPECT_TRUE(gradient.allFinite());
}

TEST(CrossEntropy, wrong_labels_throw) {
  const Matrix logits = Matrix::Zero(3, 2);
  Matrix gradient;
  EXPECT_THROW(cross_entropy(logits, std::vector{0}, gradient), UsageError);
  EXPECT_THROW(cross_entropy(logits, std::vector{0, 3}, gradient), UsageError);
  EXPECT_THROW(cross_entropy(logits, std::vector{0, -1}, gradient), UsageError);
}

}  // namespace
}  // namespace oktopk::network_test
