// SPDX-License-Identifier: Apache-2.0
#include "tools/train/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr Eigen::Index kChunk = 256;                     // samples evaluated at a time
constexpr std::uint64_t kWeights = 0x7765696768747321U;  // keeps this use of a seed from others
constexpr std::size_t kMostLayers = 16;
constexpr int kLargestLayer = 1 << 16;

// Empty when `text` is anything but numbers from 1 to kLargestLayer, separated by commas.
std::vector<int> parse_sizes(std::string_view text) {
  std::vector<int> sizes;
  const char* p = text.data();
  const char* end = p + text.size();
  while (true) {
    int size = 0;
    const auto [next, error] = std::from_chars(p, end, size);
    if (error != std::errc() || size < 1 || size > kLargestLayer) return {};
    sizes.push_back(size);
    if (next == end) return sizes;
    if (*next != ',') return {};
    p = next + 1;
  }
}

std::vector<int> hidden_layers(std::string_view spec) {
  std::vector<int> sizes;
  if (spec == "mlp") sizes = {256, 128};
  if (spec.starts_with("mlp:")) sizes = parse_sizes(spec.substr(4));
  require(!sizes.empty() && sizes.size() <= kMostLayers, "network '", spec, "': there are mlp and mlp:H1,H2,... (1 to ",
          kMostLayers, " hidden layers of 1 to ", kLargestLayer, ")");
  return sizes;
}

}  // namespace

LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels, Matrix& gradient) {
  require(static_cast<Eigen::Index>(labels.size()) == logits.cols(), labels.size(), " labels for ", logits.cols(),
          " samples");
  gradient.resize(logits.rows(), logits.cols());
  LossSum sum;
  const auto samples = static_cast<float>(logits.cols());
  for (Eigen::Index i = 0; i < logits.cols(); ++i) {
    const int label = labels[static_cast<std::size_t>(i)];
    require(label >= 0 && label < logits.rows(), "label ", label, " of ", logits.rows(), " classes");
    Eigen::Index best = 0;
    const float largest = logits.col(i).maxCoeff(&best);
    auto column = gradient.col(i).array();
    column = (logits.col(i).array() - largest).exp();
    const float total = column.sum();
    sum.loss += std::log(static_cast<double>(total)) - (static_cast<double>(logits(label, i)) - largest);
    sum.correct += best == label ? 1 : 0;
    column /= total * samples;
    column[label] -= 1 / samples;
  }
  return sum;
}

Network::Network(const std::string& spec, int features, int classes) {
  require(features >= 1, features, " features: must be at least 1");
  require(classes >= 2, classes, " classes: must be at least 2");
  std::vector<int> sizes = hidden_layers(spec);
  sizes.push_back(classes);
  std::size_t total = 0;
  for (const int size : sizes) {
    const Layer layer{.inputs = layers_.empty() ? features : layers_.back().outputs, .outputs = size, .begin = total};
    total += layer.product() + static_cast<std::size_t>(size);
    require(total <= std::numeric_limits<Index>::max(), "network ", spec, " has ", total,
            " weights or more: too many for an index");
    layers_.push_back(layer);
  }
  parameters_ = static_cast<Index>(total);
}

void Network::initialise(std::span<float> weights, std::uint64_t seed) const {
  require(weights.size() == parameters_, weights.size(), " weights for ", parameters_);
  std::ranges::fill(weights, 0.0F);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Random random(seed ^ kWeights, 2 * i);
    const double deviation = std::sqrt(2.0 / layers_[i].inputs);
    for (float& w : weights.subspan(layers_[i].begin, layers_[i].product()))
      w = static_cast<float>(deviation * random.normal());
  }
}

void Network::check(std::span<const float> weights, const Matrix& input) const {
  require(weights.size() == parameters_, weights.size(), " weights for ", parameters_);
  require(input.rows() == layers_.front().inputs, "samples of ", input.rows(), " features for a network of ",
          layers_.front().inputs);
  require(input.cols() > 0, "no samples");
}

// Returns the logits.
const Matrix& Network::forward(std::span<const float> weights, const MatrixIn& input) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const MatrixIn x = i == 0 ? input : MatrixIn(layers_[i - 1].out);
    const Eigen::Map<const Matrix> matrix(weights.data() + layer.begin, layer.inputs, layer.outputs);
    layer.sums.resize(layer.outputs, input.cols());
    layer.sums.noalias() = matrix.transpose() * x;
    layer.sums.colwise() +=
        Eigen::Map<const Eigen::VectorXf>(weights.data() + layer.begin + layer.product(), layer.outputs);
    if (i + 1 < layers_.size()) layer.out = layer.sums.cwiseMax(0.0F);
  }
  return layers_.back().sums;
}

// Begins with the gradient by the logits in delta_.
void Network::backward(std::span<const float> weights, const Matrix& input, std::span<float> gradient) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    const Matrix& x = i == 0 ? input : layers_[i - 1].out;
    float* begin = gradient.data() + layer.begin;
    Eigen::Map<Matrix>(begin, layer.inputs, layer.outputs).noalias() = x * delta_.transpose();
    Eigen::Map<Eigen::VectorXf>(begin + layer.product(), layer.outputs) = delta_.rowwise().sum();
    if (i == 0) break;
    const Eigen::Map<const Matrix> matrix(weights.data() + layer.begin, layer.inputs, layer.outputs);
    next_.resize(layer.inputs, input.cols());
    next_.noalias() = matrix * delta_;
    delta_ = (layers_[i - 1].sums.array() > 0.0F).select(next_, 0.0F);  // relu; at 0 the gradient is 0
  }
}

double Network::gradient(std::span<const float> weights, const Batch& batch, std::span<float> gradient) {
  check(weights, batch.inputs);
  require(gradient.size() == parameters_, "gradient of ", gradient.size(), " for ", parameters_);
  const LossSum sum = cross_entropy(forward(weights, batch.inputs), batch.labels, delta_);
  backward(weights, batch.inputs, gradient);
  return sum.loss / static_cast<double>(batch.inputs.cols());
}

Network::Score Network::evaluate(std::span<const float> weights, const Batch& data) {
  check(weights, data.inputs);
  Score score;
  for (Eigen::Index begin = 0; begin < data.inputs.cols(); begin += kChunk) {
    const auto count = std::min(kChunk, data.inputs.cols() - begin);
    const Matrix& logits = forward(weights, data.inputs.middleCols(begin, count));
    const LossSum sum = cross_entropy(logits, std::span(data.labels).subspan(begin, count), delta_);
    score.loss += sum.loss;
    score.accuracy += sum.correct;
  }
  score.loss /= static_cast<double>(data.inputs.cols());
  score.accuracy /= static_cast<double>(data.inputs.cols());
  return score;
}

}  // namespace oktopk
