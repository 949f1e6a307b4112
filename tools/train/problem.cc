// SPDX-License-Identifier: Apache-2.0
// The teacher computes in double, so that rounding, which differs between machines, changes no label.
#include "tools/train/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr double kNoise = 0.3;                            // entropy of the labels, as a share of log(classes)
constexpr double kDecay = 0.75;                           // deviation of feature j: (j + 1)^-kDecay, times a constant
constexpr int kCalibration = 1024;                        // samples that the temperature is found on
constexpr Eigen::Index kLabelled = 512;                   // samples that are labelled at a time
constexpr std::uint64_t kSampling = 0x73616d706c657321U;  // keeps this use of a seed from others

// Streams of random numbers that must differ.
enum Stream : std::uint64_t { first_layer = 100, second_layer, calibration, train_samples, test_samples };

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
  Batch draw(int count, Stream stream, double& loss) const;

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

// The shift of each class's logits that makes all classes about equally likely on average.
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

// Finds the scale of the logits that makes labels as noisy as kNoise says: entropy falls as the scale grows.
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

Batch Teacher::draw(int count, Stream stream, double& loss) const {
  Batch data{.inputs = draw_inputs(count, stream), .labels = {}};
  data.labels.reserve(static_cast<std::size_t>(count));
  for (Eigen::Index begin = 0; begin < count; begin += kLabelled) {
    const auto p = softmax(logits(data.inputs.middleCols(begin, std::min(kLabelled, count - begin))));
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
  LearningProblem problem{.train = teacher.draw(options.train, train_samples, train_loss),
                          .test = teacher.draw(options.test, test_samples, test_loss),
                          .classes = options.classes};
  problem.floor = test_loss / options.test;
  return problem;
}

void take_batch(const Batch& data, std::span<const std::uint32_t> samples, Batch& out) {
  out.inputs.resize(data.inputs.rows(), static_cast<Eigen::Index>(samples.size()));
  out.labels.resize(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    require(samples[i] < data.size(), "sample ", samples[i], " of ", data.size());
    out.inputs.col(static_cast<Eigen::Index>(i)) = data.inputs.col(samples[i]);
    out.labels[i] = data.labels[samples[i]];
  }
}

void draw_samples(std::size_t total, std::uint64_t seed, std::uint64_t step, std::uint64_t first, std::uint64_t count,
                  std::vector<std::uint32_t>& out) {
  require(total >= 1 && total <= std::numeric_limits<std::uint32_t>::max(), "dataset of ", total,
          " samples: must be 1 to 2^32 - 1");
  require(count >= 1, "a batch of ", count, " samples: must be at least 1");
  out.resize(count);
  for (std::uint64_t i = 0; i < count; ++i)
    out[i] = static_cast<std::uint32_t>(Random(seed ^ kSampling, step, first + i).below(total));
}

}  // namespace oktopk
