// SPDX-License-Identifier: Apache-2.0
#include "tools/train/network.h"

#include <algorithm>
#include <limits>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr Eigen::Index kChunk = 256;                     // samples evaluated at a time
constexpr std::uint64_t kWeights = 0x7765696768747321U;  // keeps this use of a seed from others

}  // namespace

Eigen::Map<Matrix> Network::Scratch::matrix(Eigen::Index rows, Eigen::Index columns) {
  if (memory_.size() < rows * columns) memory_.resize(rows, columns);
  return {memory_.data(), rows, columns};
}

Network::Network(std::string name, std::vector<std::unique_ptr<Layer>> layers) : name_(std::move(name)) {
  require(!layers.empty(), "network ", name_, " has no layers");
  std::size_t total = 0;
  for (auto& layer : layers) {
    require(stages_.empty() || stages_.back().layer->outputs() == layer->inputs(), "network ", name_, ": a layer of ",
            layer->inputs(), " inputs follows one of ", stages_.empty() ? 0 : stages_.back().layer->outputs(),
            " outputs");
    const auto sizes = layer->tensors();
    Stage stage{.first_tensor = tensors_.size(), .tensors = sizes.size(), .begin = total};
    for (const Index size : sizes) stage.count += size;
    total += stage.count;
    stage.layer = std::move(layer);
    tensors_.insert(tensors_.end(), sizes.begin(), sizes.end());
    stages_.push_back(std::move(stage));
  }
  require(total <= std::numeric_limits<Index>::max(), "network ", name_, " has ", total,
          " weights: too many for an index");
  parameters_ = static_cast<Index>(total);
}

void Network::initialise(std::span<float> weights, std::uint64_t seed) const {
  require(weights.size() == parameters_, weights.size(), " weights for ", parameters_);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Random random(seed ^ kWeights, i);
    stages_[i].layer->initialise(weights.subspan(stages_[i].begin, stages_[i].count), random);
  }
}

void Network::check(std::span<const float> weights, const MatrixIn& input) const {
  require(weights.size() == parameters_, weights.size(), " weights for ", parameters_);
  require(input.rows() == stages_.front().layer->inputs(), "samples of ", input.rows(), " features for a network of ",
          stages_.front().layer->inputs());
  require(input.cols() > 0, "no samples");
}

// The logits.
MatrixOut Network::forward(std::span<const float> weights, const MatrixIn& input) {
  const auto samples = input.cols();
  const float* x = input.data();
  for (Stage& stage : stages_) {
    auto output = stage.output.matrix(stage.layer->outputs(), samples);
    stage.layer->forward(weights.subspan(stage.begin, stage.count),
                         Eigen::Map<const Matrix>(x, stage.layer->inputs(), samples), output);
    x = output.data();
  }
  return stages_.back().output.matrix(stages_.back().layer->outputs(), samples);
}

// Begins with the gradient by the logits in deltas_[0].
void Network::backward(std::span<const float> weights, const MatrixIn& input, std::span<float> gradient,
                       const TensorReady& ready) {
  const auto samples = input.cols();
  for (std::size_t i = stages_.size(); i-- > 0;) {
    Stage& stage = stages_[i];
    const auto rows = stage.layer->inputs();
    const MatrixIn x = i == 0 ? input : MatrixIn(stages_[i - 1].output.matrix(rows, samples));
    const auto delta = deltas_[0].matrix(stage.layer->outputs(), samples);
    stage.layer->weight_gradient(x, delta, gradient.subspan(stage.begin, stage.count));
    for (std::size_t t = stage.tensors; ready && t-- > 0;) ready(stage.first_tensor + t);
    if (i == 0) break;
    stage.layer->input_gradient(weights.subspan(stage.begin, stage.count), x, delta, deltas_[1].matrix(rows, samples));
    std::swap(deltas_[0], deltas_[1]);
  }
}

double Network::gradient(std::span<const float> weights, const Batch& batch, std::span<float> gradient,
                         const TensorReady& ready) {
  check(weights, batch.inputs);
  require(gradient.size() == parameters_, "gradient of ", gradient.size(), " for ", parameters_);
  const auto logits = forward(weights, batch.inputs);
  const auto samples = batch.inputs.cols();
  const LossSum sum = cross_entropy(logits, batch.labels, deltas_[0].matrix(logits.rows(), samples));
  backward(weights, batch.inputs, gradient, ready);
  return sum.loss / static_cast<double>(samples);
}

Network::Score Network::evaluate(std::span<const float> weights, const Dataset& data) {
  check(weights, data.inputs);
  Score score;
  for (Eigen::Index begin = 0; begin < data.inputs.cols(); begin += kChunk) {
    const auto count = std::min(kChunk, data.inputs.cols() - begin);
    const auto logits = forward(weights, data.inputs.middleCols(begin, count));
    const LossSum sum = cross_entropy(logits, std::span(data.labels).subspan(begin, count));
    score.loss += sum.loss;
    score.accuracy += sum.correct;
  }
  score.loss /= static_cast<double>(data.inputs.cols());
  score.accuracy /= static_cast<double>(data.inputs.cols());
  return score;
}

}  // namespace oktopk
