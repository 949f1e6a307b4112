// SPDX-License-Identifier: Apache-2.0
// The parts that networks are chained from: each maps a column per sample to a column per sample
// and can take the gradient back, first to its weights and then to its inputs. Layers hold no
// weights, only their sizes and scratch memory: the weights are a part of the network's flat
// vector. Two verbs for the way back, because the first layer needs no gradient of its inputs, and
// because what is ready early can be sent early.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/sparse/coo.h"
#include "tools/train/dataset.h"

namespace oktopk {

using MatrixIn = Eigen::Ref<const Matrix>;
using MatrixOut = Eigen::Ref<Matrix>;

class Layer {
 public:
  virtual ~Layer() = default;

  virtual int inputs() const = 0;   // rows
  virtual int outputs() const = 0;  // rows
  // Sizes of the weight tensors, in the order in which they lie in `weights`.
  virtual std::vector<Index> tensors() const { return {}; }
  virtual void initialise(std::span<float> /*weights*/, Random& /*random*/) const {}

  // Matrices have the right sizes already and are overwritten as a whole.
  virtual void forward(std::span<const float> weights, const MatrixIn& input, MatrixOut output) = 0;
  // `gradient` becomes that of the loss by this layer's weights.
  virtual void weight_gradient(const MatrixIn& /*input*/, const MatrixIn& /*output_gradient*/,
                               std::span<float> /*gradient*/) {}
  // `input_gradient` becomes that of the loss by the input of forward().
  virtual void input_gradient(std::span<const float> weights, const MatrixIn& input, const MatrixIn& output_gradient,
                              MatrixOut input_gradient) = 0;
};

// output = weights * input + bias. Tensors: weights (one output after the other), biases.
std::unique_ptr<Layer> make_dense(int inputs, int outputs);

// max(input, 0).
std::unique_ptr<Layer> make_relu(int size);

// 3x3, stride 1, zeros around the border, so that height and width stay. Tensors: weights (output
// channel, input channel, row, column: the last runs fastest), biases.
std::unique_ptr<Layer> make_convolution(const Shape& input, int channels);

// The largest of each 2x2 square; an odd last row or column is left out.
std::unique_ptr<Layer> make_max_pool(const Shape& input);

// rows * columns; UsageError when that is too large for an index.
Index tensor_size(int rows, int columns);

// He initialisation: normal with variance 2 / inputs.
void initialise_he(std::span<float> weights, int inputs, Random& random);

}  // namespace oktopk
