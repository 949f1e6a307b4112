// SPDX-License-Identifier: Apache-2.0
// Gradients of single layers against central differences, exactly: layers are linear in their
// weights and, piece by piece, in their inputs, so that with small dyadic numbers no step is too
// long and nothing is rounded.
#include "tools/train/layer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::layer_test {
namespace {

Matrix dyadic(Eigen::Index rows, Eigen::Index columns, Random& random) {
  Matrix m(rows, columns);
  for (float& x : m.reshaped()) x = (static_cast<float>(random.below(17)) - 8) / 4;
  return m;
}

// Distinct values at least 1/4 from each other and 1/8 from zero: no kink is near.
Matrix distinct(Eigen::Index rows, Eigen::Index columns, Random& random) {
  Matrix m(rows, columns);
  const auto count = static_cast<int>(m.size());
  const int half = count / 2;
  for (int i = 0; i < count; ++i) m.reshaped()[i] = (static_cast<float>(i - half) + 0.5F) / 4;
  for (int i = count - 1; i > 0; --i) std::swap(m.reshaped()[i], m.reshaped()[static_cast<int>(random.below(i + 1))]);
  return m;
}

// sum(mix .* layer(weights, x)): a loss whose gradient by the layer's output is `mix`.
struct Probe {
  Probe(std::unique_ptr<Layer> made, int batch, std::uint64_t seed) : layer(std::move(made)) {
    Random random(seed);
    const auto sizes = layer->tensors();
    const Matrix w = dyadic(std::accumulate(sizes.begin(), sizes.end(), Index{0}), 1, random);
    weights.assign(w.data(), w.data() + w.size());
    x = sizes.empty() ? distinct(layer->inputs(), batch, random) : dyadic(layer->inputs(), batch, random);
    mix = dyadic(layer->outputs(), batch, random);
  }

  double loss() {
    Matrix output(layer->outputs(), x.cols());
    layer->forward(weights, x, output);
    return (output.cast<double>().array() * mix.cast<double>().array()).sum();
  }

  // By one of the weights or inputs.
  double slope(float& place) {
    constexpr float kStep = 1.0F / 16;
    const float before = place;
    place = before + kStep;
    const double above = loss();
    place = before - kStep;
    const double below = loss();
    place = before;
    return (above - below) / (2 * kStep);
  }

  std::unique_ptr<Layer> layer;
  std::vector<float> weights;
  Matrix x, mix;
};

struct Kind {
  std::string name;
  std::unique_ptr<Layer> (*make)();
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class LayerGradient : public testing::TestWithParam<Kind> {};

TEST_P(LayerGradient, weight_gradient_equals_central_differences) {
  for (const int batch : {1, 3}) {
    Probe probe(GetParam().make(), batch, 1);
    std::vector<float> expected;
    for (float& w : probe.weights) expected.push_back(static_cast<float>(probe.slope(w)));
    std::vector<float> gradient(probe.weights.size(), -77);
    probe.layer->weight_gradient(probe.x, probe.mix, gradient);
    EXPECT_EQ(gradient, expected) << batch;
  }
}

TEST_P(LayerGradient, input_gradient_equals_central_differences) {
  for (const int batch : {1, 3}) {
    Probe probe(GetParam().make(), batch, 2);
    Matrix expected(probe.x.rows(), batch);
    for (Eigen::Index i = 0; i < expected.size(); ++i)
      expected.data()[i] = static_cast<float>(probe.slope(probe.x.data()[i]));
    Matrix gradient = Matrix::Constant(probe.x.rows(), batch, -77);
    probe.layer->input_gradient(probe.weights, probe.x, probe.mix, gradient);
    EXPECT_EQ(gradient, expected) << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerGradient,
                         testing::Values(Kind{"dense_5_3", [] { return make_dense(5, 3); }},
                                         Kind{"dense_1_1", [] { return make_dense(1, 1); }},
                                         Kind{"relu_11", [] { return make_relu(11); }},
                                         Kind{"convolution_2x5x7",
                                              [] {
                                                return make_convolution({2, 5, 7}, 3);
                                              }},
                                         Kind{"convolution_1x4x4",
                                              [] {
                                                return make_convolution({1, 4, 4}, 2);
                                              }},
                                         Kind{"convolution_3x1x2",
                                              [] {
                                                return make_convolution({3, 1, 2}, 1);
                                              }},
                                         Kind{"convolution_1x1x1",
                                              [] {
                                                return make_convolution({1, 1, 1}, 2);
                                              }},
                                         Kind{"max_pool_2x5x7",
                                              [] {
                                                return make_max_pool({2, 5, 7});
                                              }},
                                         Kind{"max_pool_3x4x6",
                                              [] {
                                                return make_max_pool({3, 4, 6});
                                              }},
                                         Kind{"max_pool_1x2x2",
                                              [] {
                                                return make_max_pool({1, 2, 2});
                                              }}),
                         [](const auto& kind) { return kind.param.name; });

// A kernel of a single one shifts the image, and zeros come in over the border.
TEST(Convolution, forward_with_one_tap_shifts_the_image) {
  const auto layer = make_convolution({1, 2, 3}, 1);
  Matrix image(6, 1), output(6, 1), expected(6, 1);
  image << 1, 2, 3, 4, 5, 6;
  std::vector<float> weights(10);
  weights[2] = 1;  // row above, column to the right
  weights[9] = 10;
  layer->forward(weights, image, output);
  expected << 10, 10, 10, 12, 13, 10;
  EXPECT_EQ(output, expected);
}

TEST(MaxPool, forward_takes_the_largest_and_leaves_out_the_odd_rest) {
  const auto layer = make_max_pool({1, 3, 5});
  Matrix image(15, 1), output(2, 1), expected(2, 1);
  image << 1, 2, 8, 3, 99, 7, 4, 5, 6, 99, 99, 99, 99, 99, 99;
  layer->forward({}, image, output);
  expected << 7, 8;
  EXPECT_EQ(output, expected);
}

TEST(MaxPool, input_gradient_of_equal_values_goes_to_the_first) {
  const auto layer = make_max_pool({1, 2, 2});
  Matrix gradient(4, 1), expected(4, 1);
  layer->input_gradient({}, Matrix::Ones(4, 1), Matrix::Constant(1, 1, 3), gradient);
  expected << 3, 0, 0, 0;
  EXPECT_EQ(gradient, expected);
}

TEST(Dense, initialise_has_variance_two_over_inputs_and_no_biases) {
  const auto layer = make_dense(200, 100);
  std::vector<float> weights(200 * 100 + 100, 1);
  Random random(1);
  layer->initialise(weights, random);
  double squares = 0;
  for (const float w : weights) squares += static_cast<double>(w) * w;
  EXPECT_NEAR(squares / (200 * 100), 2.0 / 200, 0.0005);
  for (std::size_t i = 200 * 100; i < weights.size(); ++i) EXPECT_EQ(weights[i], 0);
}

TEST(Dense, tensors_larger_than_an_index_throw) { EXPECT_THROW(make_dense(1 << 16, 1 << 16)->tensors(), UsageError); }

}  // namespace
}  // namespace oktopk::layer_test
