// SPDX-License-Identifier: Apache-2.0
// The teacher computes in double: whatever the order in which a machine adds, no label will differ.
#include "tools/train/teacher.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr double kNoise = 0.3;      // entropy of the labels, as a share of log(classes)
constexpr double kDecay = 0.75;     // deviation of feature j: (j + 1)^-kDecay, times a constant
constexpr int kCalibration = 1024;  // samples that the temperature is found on
constexpr Eigen::Index kChunk = 512;

// Uses of the seed that must not see the same numbers.
enum Stream : std::uint64_t { first_layer = 100, second_layer, calibration, train, test };

Eigen::MatrixXd normal_matrix(int rows, int columns, Random random) {
  Eigen::MatrixXd matrix(rows, columns);
  for (double& x : matrix.reshaped()) x = random.normal();
  return matrix;
}

class Teacher {
 public:
  explicit Teacher(const TeacherOptions& options)
      : options_(options),
        scales_(options.features),
        first_(normal_matrix(options.hidden, options.features, {options.seed, first_layer})),
        second_(normal_matrix(options.classes, options.hidden, {options.seed, second_layer})),
        shift_(Eigen::VectorXd::Zero(options.classes)) {
    for (int j = 0; j < options.features; ++j) scales_[j] = std::pow(j + 1, -kDecay);
    scales_ *= std::sqrt(options.features / scales_.squaredNorm());
    first_ /= std::sqrt(options.features);  // hidden values of variance 1
    calibrate();
  }

  // Returns the samples; adds the loss of the true probabilities on them to `loss`.
  Dataset draw(int count, Stream stream, double& loss) const;

 private:
  Matrix draw_inputs(int count, Stream stream) const;
  Eigen::MatrixXd logits(const Eigen::Ref<const Matrix>& inputs) const;
  void calibrate();

  TeacherOptions options_;
  Eigen::VectorXd scales_;  // of the features
  Eigen::MatrixXd first_;
  Eigen::MatrixXd second_;
  Eigen::VectorXd shift_;
};

Matrix Teacher::draw_inputs(int count, Stream stream) const {
  Matrix inputs(options_.features, count);
  for (int i = 0; i < count; ++i) {
    Random random(options_.seed, stream, static_cast<std::uint64_t>(2 * i));
    for (int j = 0; j < options_.features; ++j) inputs(j, i) = static_cast<float>(scales_[j] * random.normal());
  }
  return inputs;
}

Eigen::MatrixXd Teacher::logits(const Eigen::Ref<const Matrix>& inputs) const {
  const Eigen::MatrixXd hidden = (first_ * inputs.cast<double>()).cwiseMax(0.0);
  return (second_ * hidden).colwise() + shift_;
}

// Probabilities, column by column.
Eigen::MatrixXd softmax(const Eigen::MatrixXd& logits) {
  Eigen::MatrixXd powers = (logits.rowwise() - logits.colwise().maxCoeff()).array().exp();
  return powers.array().rowwise() / powers.array().colwise().sum();
}

// What to add to each class's logits so that on average all classes are about equally likely.
Eigen::VectorXd balance(const Eigen::MatrixXd& logits) {
  Eigen::VectorXd shift = Eigen::VectorXd::Zero(logits.rows());
  for (int round = 0; round < 5; ++round)
    shift.array() -= softmax(logits.colwise() + shift).rowwise().mean().array().max(1e-9).log();
  return shift;
}

double mean_entropy(const Eigen::MatrixXd& logits) {
  const Eigen::ArrayXXd p = softmax(logits);
  return -(p * p.max(1e-300).log()).sum() / static_cast<double>(logits.cols());
}

// Scales the logits so that labels are as noisy as wanted: entropy falls as the scale grows.
void Teacher::calibrate() {
  const Eigen::MatrixXd raw = logits(draw_inputs(kCalibration, calibration));
  double low = 1e-3;
  double high = 1e3;
  for (int i = 0; i < 20; ++i) {
    const double middle = std::sqrt(low * high);
    const Eigen::MatrixXd scaled = middle * raw;
    const double entropy = mean_entropy(scaled.colwise() + balance(scaled));
    (entropy > kNoise * std::log(options_.classes) ? low : high) = middle;
  }
  second_ *= low;
  shift_ = balance(low * raw);
}

Dataset Teacher::draw(int count, Stream stream, double& loss) const {
  Dataset data{
      .shape = {.channels = options_.features}, .classes = options_.classes, .inputs = draw_inputs(count, stream)};
  data.labels.reserve(static_cast<std::size_t>(count));
  for (Eigen::Index begin = 0; begin < count; begin += kChunk) {
    const auto p = softmax(logits(data.inputs.middleCols(begin, std::min(kChunk, count - begin))));
    for (Eigen::Index i = 0; i < p.cols(); ++i) {
      const auto sample = static_cast<std::uint64_t>(begin + i);
      double rest = Random(options_.seed, stream, 2 * sample + 1).uniform();
      int label = 0;
      while (label + 1 < options_.classes && (rest -= p(label, i)) > 0) ++label;
      data.labels.push_back(label);
      loss -= std::log(std::max(p(label, i), 1e-300));
    }
  }
  return data;
}

}  // namespace

LearningProblem make_teacher(const TeacherOptions& options) {
  require(options.features >= 1 && options.hidden >= 1 && options.train >= 1 && options.test >= 1,
          "teacher: features, hidden, train and test must be at least 1");
  require(options.classes >= 2, "teacher: ", options.classes, " classes: must be at least 2");
  const Teacher teacher(options);
  double train_loss = 0;
  double test_loss = 0;
  LearningProblem problem{.name = "teacher",
                          .train = teacher.draw(options.train, train, train_loss),
                          .test = teacher.draw(options.test, test, test_loss)};
  problem.floor = test_loss / options.test;
  return problem;
}

}  // namespace oktopk
