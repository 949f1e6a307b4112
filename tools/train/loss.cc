// SPDX-License-Identifier: Apache-2.0
#include "tools/train/loss.h"

#include <cmath>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// Adds one sample to `sum`; `powers` become exp(logits - largest). Returns their sum.
template <class Column, class Powers>
float add_sample(const Column& logits, int label, Powers&& powers, LossSum& sum) {
  Eigen::Index best = 0;
  const float largest = logits.maxCoeff(&best);
  powers = (logits.array() - largest).exp();
  const float total = powers.sum();
  sum.loss += std::log(static_cast<double>(total)) - (static_cast<double>(logits[label]) - largest);
  sum.correct += best == label ? 1 : 0;
  return total;
}

void check(const MatrixIn& logits, std::span<const int> labels) {
  require(static_cast<Eigen::Index>(labels.size()) == logits.cols(), labels.size(), " labels for ", logits.cols(),
          " samples");
  for (const int label : labels)
    require(label >= 0 && label < logits.rows(), "label ", label, " of ", logits.rows(), " classes");
}

}  // namespace

LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels) {
  check(logits, labels);
  LossSum sum;
  Eigen::ArrayXf powers(logits.rows());
  for (Eigen::Index i = 0; i < logits.cols(); ++i)
    add_sample(logits.col(i), labels[static_cast<std::size_t>(i)], powers, sum);
  return sum;
}

LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels, MatrixOut gradient) {
  check(logits, labels);
  LossSum sum;
  const auto samples = static_cast<float>(logits.cols());
  for (Eigen::Index i = 0; i < logits.cols(); ++i) {
    const int label = labels[static_cast<std::size_t>(i)];
    auto column = gradient.col(i).array();
    const float total = add_sample(logits.col(i), label, column, sum);
    column /= total * samples;
    column[label] -= 1 / samples;
  }
  return sum;
}

}  // namespace oktopk
