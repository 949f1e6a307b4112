// SPDX-License-Identifier: Apache-2.0
// A multilayer perceptron with relu between its layers and softmax cross-entropy at its end. Weights are one flat
// vector that belongs to the caller, as gradients do, so that both can be reduced as they are. The object holds scratch
// memory only: one object for each rank or thread.
// COST: a warm step allocates nothing (but Eigen, for products of large layers, its packing buffers); no threads.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oktopk/sparse/coo.h"
#include "tools/train/problem.h"

namespace oktopk {

using MatrixIn = Eigen::Ref<const Matrix>;

struct LossSum {
  double loss = 0;  // of all samples; in double, so that means over a large set are exact enough to print
  int correct = 0;  // samples whose label has the largest logit (the first of equal ones)
};

// `gradient` becomes that of the mean loss by the logits. UsageError unless each column of `logits` has a label that is
// smaller than the number of rows.
LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels, Matrix& gradient);

class Network {
 public:
  struct Score {
    double loss = 0;      // mean cross-entropy
    double accuracy = 0;  // share of the samples
  };

  // spec: "mlp" (hidden layers of 256 and 128) or "mlp:H1,H2,...". UsageError for any other.
  Network(const std::string& spec, int features, int classes);

  Index parameters() const { return parameters_; }

  // He initialisation, biases zero; the same for the same seed.
  void initialise(std::span<float> weights, std::uint64_t seed) const;

  // Returns the mean cross-entropy over the batch; writes every entry of `gradient`.
  double gradient(std::span<const float> weights, const Batch& batch, std::span<float> gradient);

  Score evaluate(std::span<const float> weights, const Batch& data);

 private:
  struct Layer {
    int inputs, outputs;
    std::size_t begin;           // of its weights in the flat vector; biases follow
    Matrix sums = {}, out = {};  // before and after relu; the last layer has sums only
    std::size_t product() const { return static_cast<std::size_t>(inputs) * static_cast<std::size_t>(outputs); }
  };

  void check(std::span<const float> weights, const Matrix& input) const;
  const Matrix& forward(std::span<const float> weights, const MatrixIn& input);
  void backward(std::span<const float> weights, const Matrix& input, std::span<float> gradient);

  std::vector<Layer> layers_;
  Index parameters_ = 0;
  Matrix delta_, next_;  // gradients by the outputs of a layer, and by its inputs
};

}  // namespace oktopk
