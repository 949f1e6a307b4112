// SPDX-License-Identifier: Apache-2.0
// The largest of each 2x2 square; of equal ones the first. The way back looks for the largest again
// rather than to remember where it was: four comparisons cost no more than the memory would.
#include "tools/train/layer.h"

namespace oktopk {
namespace {

class MaxPool final : public Layer {
 public:
  explicit MaxPool(const Shape& in)
      : in_(in), out_{.channels = in.channels, .height = in.height / 2, .width = in.width / 2} {}

  int inputs() const override { return in_.features(); }
  int outputs() const override { return out_.features(); }

  void forward(std::span<const float> /*weights*/, const MatrixIn& input, MatrixOut output) override {
    for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
      const float* x = input.col(sample).data();
      float* y = output.col(sample).data();
      for_each_square(x, [&](const float* largest) { *y++ = *largest; });
    }
  }

  void input_gradient(std::span<const float> /*weights*/, const MatrixIn& input, const MatrixIn& output_gradient,
                      MatrixOut input_gradient) override {
    input_gradient.setZero();
    for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
      const float* x = input.col(sample).data();
      const float* dy = output_gradient.col(sample).data();
      float* dx = input_gradient.col(sample).data();
      for_each_square(x, [&](const float* largest) { dx[largest - x] = *dy++; });
    }
  }

 private:
  // Calls visit(pointer to the largest) for every square of a sample, in the order of the outputs.
  template <class Visit>
  void for_each_square(const float* x, const Visit& visit) const {
    for (int channel = 0; channel < in_.channels; ++channel, x += in_.pixels())
      for (int row = 0; row < out_.height; ++row)
        for (int column = 0; column < out_.width; ++column)
          visit(largest_of_square(x + 2 * row * in_.width + 2 * column));
  }

  const float* largest_of_square(const float* corner) const {
    const float* below = corner + in_.width;
    const float* above_one = corner[1] > corner[0] ? corner + 1 : corner;
    const float* below_one = below[1] > below[0] ? below + 1 : below;
    return *below_one > *above_one ? below_one : above_one;
  }

  Shape in_;
  Shape out_;
};

}  // namespace

std::unique_ptr<Layer> make_max_pool(const Shape& input) { return std::make_unique<MaxPool>(input); }

}  // namespace oktopk
