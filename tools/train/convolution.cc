// SPDX-License-Identifier: Apache-2.0
// 3x3 convolutions as matrix products (im2col), one sample at a time so that the unfolded sample
// stays in the cache: `unfolded_` has a row per pixel and a column per (input channel, row, column)
// of the kernel, and each of its columns is a plane of the sample, shifted. The way back unfolds
// again rather than to keep a whole batch unfolded. COST: 9 * channels in * channels out * pixels *
// batch multiplications for each of the three verbs.
#include <algorithm>
#include <cstdlib>

#include "tools/train/layer.h"

namespace oktopk {
namespace {

constexpr int kSide = 3;
constexpr int kTaps = kSide * kSide;

class Convolution final : public Layer {
 public:
  Convolution(const Shape& in, int channels)
      : in_(in), channels_(channels), taps_(kTaps * in.channels), unfolded_(in.pixels(), taps_) {}

  int inputs() const override { return in_.features(); }
  int outputs() const override { return channels_ * in_.pixels(); }
  std::vector<Index> tensors() const override { return {tensor_size(taps_, channels_), static_cast<Index>(channels_)}; }

  void initialise(std::span<float> weights, Random& random) const override {
    initialise_he(weights.first(product()), taps_, random);
    std::ranges::fill(weights.subspan(product()), 0.0F);
  }

  void forward(std::span<const float> weights, const MatrixIn& input, MatrixOut output) override {
    const Eigen::Map<const Eigen::RowVectorXf> bias(weights.data() + product(), channels_);
    for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
      unfold(input.col(sample).data());
      Eigen::Map<Matrix> planes(output.col(sample).data(), in_.pixels(), channels_);
      planes.noalias() = unfolded_ * matrix(weights);
      planes.rowwise() += bias;
    }
  }

  void weight_gradient(const MatrixIn& input, const MatrixIn& output_gradient, std::span<float> gradient) override {
    std::ranges::fill(gradient, 0.0F);
    Eigen::Map<Matrix> by_weights(gradient.data(), taps_, channels_);
    Eigen::Map<Eigen::RowVectorXf> by_biases(gradient.data() + product(), channels_);
    for (Eigen::Index sample = 0; sample < input.cols(); ++sample) {
      unfold(input.col(sample).data());
      const auto planes = planes_of(output_gradient, sample);
      by_weights.noalias() += unfolded_.transpose() * planes;
      by_biases += planes.colwise().sum();
    }
  }

  void input_gradient(std::span<const float> weights, const MatrixIn& /*input*/, const MatrixIn& output_gradient,
                      MatrixOut input_gradient) override {
    input_gradient.setZero();
    for (Eigen::Index sample = 0; sample < output_gradient.cols(); ++sample) {
      unfolded_.noalias() = planes_of(output_gradient, sample) * matrix(weights).transpose();
      fold(input_gradient.col(sample).data());
    }
  }

 private:
  std::size_t product() const { return static_cast<std::size_t>(taps_) * static_cast<std::size_t>(channels_); }
  // A column per output channel.
  Eigen::Map<const Matrix> matrix(std::span<const float> weights) const { return {weights.data(), taps_, channels_}; }
  Eigen::Map<const Matrix> planes_of(const MatrixIn& output, Eigen::Index sample) const {
    return {output.col(sample).data(), in_.pixels(), channels_};
  }

  // Calls visit(unfolded, plane, count) for every run of pixels where a row of a shifted plane, in
  // column `tap` of unfolded_, lies inside of the sample.
  template <class Visit>
  void for_each_run(const Visit& visit) {
    for (int tap = 0; tap < taps_; ++tap) {
      const int down = tap % kTaps / kSide - 1;
      const int right = tap % kSide - 1;
      const int plane = tap / kTaps * in_.pixels();
      const int first = std::max(0, -right);
      const int count = in_.width - std::abs(right);
      float* shifted = unfolded_.col(tap).data();
      for (int row = std::max(0, -down); row < in_.height - std::max(0, down); ++row)
        visit(shifted + row * in_.width + first, plane + (row + down) * in_.width + first + right, count);
    }
  }

  void unfold(const float* sample) {
    unfolded_.setZero();
    for_each_run([&](float* shifted, int from, int count) { std::copy_n(sample + from, count, shifted); });
  }

  // The transpose of unfold: adds.
  void fold(float* sample) {
    for_each_run([&](const float* shifted, int to, int count) {
      for (int i = 0; i < count; ++i) sample[to + i] += shifted[i];
    });
  }

  Shape in_;
  int channels_;
  int taps_;  // of one output channel
  Matrix unfolded_;
};

}  // namespace

std::unique_ptr<Layer> make_convolution(const Shape& input, int channels) {
  return std::make_unique<Convolution>(input, channels);
}

}  // namespace oktopk
