// SPDX-License-Identifier: Apache-2.0
// max(x, 0), element by element. At 0 the gradient is 0.
#include "tools/train/layer.h"

namespace oktopk {
namespace {

class Relu final : public Layer {
 public:
  explicit Relu(int size) : size_(size) {}

  int inputs() const override { return size_; }
  int outputs() const override { return size_; }

  void forward(std::span<const float> /*weights*/, const MatrixIn& input, MatrixOut output) override {
    output = input.cwiseMax(0.0F);
  }

  void input_gradient(std::span<const float> /*weights*/, const MatrixIn& input, const MatrixIn& output_gradient,
                      MatrixOut input_gradient) override {
    input_gradient = (input.array() > 0.0F).select(output_gradient, 0.0F);
  }

 private:
  int size_;
};

}  // namespace

std::unique_ptr<Layer> make_relu(int size) { return std::make_unique<Relu>(size); }

}  // namespace oktopk
