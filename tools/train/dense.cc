// SPDX-License-Identifier: Apache-2.0
// Dense layers, and the initialisation that all layers with weights share.
// COST: inputs * outputs * batch multiplications for each of the three verbs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "tools/train/layer.h"

namespace oktopk {
namespace {

class Dense final : public Layer {
 public:
  Dense(int inputs, int outputs) : inputs_(inputs), outputs_(outputs) {}

  int inputs() const override { return inputs_; }
  int outputs() const override { return outputs_; }
  std::vector<Index> tensors() const override { return {tensor_size(inputs_, outputs_), static_cast<Index>(outputs_)}; }

  void initialise(std::span<float> weights, Random& random) const override {
    initialise_he(weights.first(product()), inputs_, random);
    std::ranges::fill(weights.subspan(product()), 0.0F);
  }

  void forward(std::span<const float> weights, const MatrixIn& input, MatrixOut output) override {
    output.noalias() = matrix(weights).transpose() * input;
    output.colwise() += Eigen::Map<const Eigen::VectorXf>(weights.data() + product(), outputs_);
  }

  void weight_gradient(const MatrixIn& input, const MatrixIn& output_gradient, std::span<float> gradient) override {
    Eigen::Map<Matrix>(gradient.data(), inputs_, outputs_).noalias() = input * output_gradient.transpose();
    Eigen::Map<Eigen::VectorXf>(gradient.data() + product(), outputs_) = output_gradient.rowwise().sum();
  }

  void input_gradient(std::span<const float> weights, const MatrixIn& /*input*/, const MatrixIn& output_gradient,
                      MatrixOut input_gradient) override {
    input_gradient.noalias() = matrix(weights) * output_gradient;
  }

 private:
  std::size_t product() const { return static_cast<std::size_t>(inputs_) * static_cast<std::size_t>(outputs_); }
  // A column per output.
  Eigen::Map<const Matrix> matrix(std::span<const float> weights) const { return {weights.data(), inputs_, outputs_}; }

  int inputs_;
  int outputs_;
};

}  // namespace

std::unique_ptr<Layer> make_dense(int inputs, int outputs) { return std::make_unique<Dense>(inputs, outputs); }

Index tensor_size(int rows, int columns) {
  const auto size = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns);
  require(size <= std::numeric_limits<Index>::max(), "layer of ", rows, " x ", columns,
          " weights: too many for an index");
  return static_cast<Index>(size);
}

void initialise_he(std::span<float> weights, int inputs, Random& random) {
  const double deviation = std::sqrt(2.0 / inputs);
  for (float& w : weights) w = static_cast<float>(deviation * random.normal());
}

}  // namespace oktopk
