// SPDX-License-Identifier: Apache-2.0
#include "tools/train/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::loss_test {
namespace {

TEST(CrossEntropy, known_probabilities_give_their_logarithms) {
  Matrix logits(3, 2);
  logits << std::log(0.2F), 0, std::log(0.5F), 0, std::log(0.3F), 0;
  const LossSum sum = cross_entropy(logits, std::vector{1, 2});
  EXPECT_NEAR(sum.loss, -std::log(0.5) + std::log(3.0), 1e-6);
  EXPECT_EQ(sum.correct, 1);
}

TEST(CrossEntropy, gradient_is_probability_minus_label_over_samples) {
  Matrix logits(3, 2), gradient(3, 2), expected(3, 2);
  logits << std::log(0.2F), 0, std::log(0.5F), 0, std::log(0.3F), 0;
  const std::vector labels{1, 2};
  EXPECT_EQ(cross_entropy(logits, labels, gradient).loss, cross_entropy(logits, labels).loss);
  expected << 0.1F, 1 / 6.0F, -0.25F, 1 / 6.0F, 0.15F, -2 / 6.0F;
  EXPECT_LT((gradient - expected).cwiseAbs().maxCoeff(), 1e-6);
}

TEST(CrossEntropy, huge_logits_stay_finite) {
  Matrix logits(2, 2), gradient(2, 2);
  logits << 1e4F, -1e4F, -1e4F, 1e4F;
  const LossSum sum = cross_entropy(logits, std::vector{0, 0}, gradient);
  EXPECT_NEAR(sum.loss, 2e4, 1e-3);
  EXPECT_TRUE(gradient.allFinite());
}

TEST(CrossEntropy, wrong_labels_throw) {
  const Matrix logits = Matrix::Zero(3, 2);
  EXPECT_THROW(cross_entropy(logits, std::vector{0}), UsageError);
  EXPECT_THROW(cross_entropy(logits, std::vector{0, 3}), UsageError);
  EXPECT_THROW(cross_entropy(logits, std::vector{0, -1}), UsageError);
}

}  // namespace
}  // namespace oktopk::loss_test
