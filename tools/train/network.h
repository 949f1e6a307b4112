// SPDX-License-Identifier: Apache-2.0
// A chain of layers with softmax cross-entropy at its end. Weights are one flat vector that belongs
// to the caller, as gradients do, so that both can be reduced as they are; the object holds scratch
// memory only: one for each rank or thread.
// COST: a warm step allocates nothing (but Eigen, for products of large layers, its packing
// buffers); no threads.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/sparse/coo.h"
#include "tools/train/dataset.h"
#include "tools/train/layer.h"
#include "tools/train/loss.h"

namespace oktopk {

// Called with a tensor's place in Network::tensors().
using TensorReady = std::function<void(std::size_t)>;

class Network {
 public:
  struct Score {
    double loss = 0;      // mean cross-entropy
    double accuracy = 0;  // share of the samples
  };

  // REQUIRES: at least one layer; each takes what the one before gives.
  Network(std::string name, std::vector<std::unique_ptr<Layer>> layers);

  std::string_view name() const { return name_; }  // the whole spec: "mlp:256,128"
  Index parameters() const { return parameters_; }
  // Sizes of the weight tensors in flat order: weights and biases of the first layer, ...
  const std::vector<Index>& tensors() const { return tensors_; }

  // He initialisation, biases zero; the same for the same seed.
  void initialise(std::span<float> weights, std::uint64_t seed) const;

  // Mean cross-entropy over the batch; every entry of `gradient` is written. ready(t) is called as
  // soon as the gradient of tensor t is final: the last tensor first, each once.
  double gradient(std::span<const float> weights, const Batch& batch, std::span<float> gradient,
                  const TensorReady& ready = {});

  Score evaluate(std::span<const float> weights, const Dataset& data);

 private:
  // Memory that only grows, seen as a matrix of any size.
  class Scratch {
   public:
    Eigen::Map<Matrix> matrix(Eigen::Index rows, Eigen::Index columns);

   private:
    Matrix memory_;
  };
  struct Stage {
    std::unique_ptr<Layer> layer;
    std::size_t first_tensor = 0;
    std::size_t tensors = 0;
    std::size_t begin = 0;  // of its weights in the flat vector
    std::size_t count = 0;
    Scratch output = {};
  };

  void check(std::span<const float> weights, const MatrixIn& input) const;
  MatrixOut forward(std::span<const float> weights, const MatrixIn& input);
  void backward(std::span<const float> weights, const MatrixIn& input, std::span<float> gradient,
                const TensorReady& ready);

  std::string name_;
  std::vector<Stage> stages_;
  std::vector<Index> tensors_;
  Index parameters_ = 0;
  std::array<Scratch, 2> deltas_;  // gradients by outputs: of this stage, of the one before
};

// "mlp" (hidden layers of 256 and 128), "mlp:300,100"; "conv" (3x3 convolutions of 8 and 16
// channels, each with relu and 2x2 max-pool, then dense), "conv:16,32". UsageError names what is
// wrong and lists what there is.
std::unique_ptr<Network> make_network(const std::string& spec, const Shape& shape, int classes);

}  // namespace oktopk
