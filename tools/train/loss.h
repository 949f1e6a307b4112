// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy: the last stage of every network. Sums in double, so that the mean over a
// large test set means something to the last digits that are printed.
#pragma once

#include <span>

#include "tools/train/layer.h"

namespace oktopk {

struct LossSum {
  double loss = 0;  // of all samples
  int correct = 0;  // samples whose label has the largest logit (the first of equal ones)
};

// REQUIRES: a label per column of `logits`, each smaller than its rows.
LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels);

// The same; `gradient` becomes that of the mean loss by the logits.
LossSum cross_entropy(const MatrixIn& logits, std::span<const int> labels, MatrixOut gradient);

}  // namespace oktopk
