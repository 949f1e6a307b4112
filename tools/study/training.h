// SPDX-License-Identifier: Apache-2.0
// A real training stream for the studies: a small multilayer perceptron that learns from a
// generated teacher (tools/train/teacher.h), each rank on samples of its own.
#pragma once

#include <string>

#include "tools/study/xi.h"
#include "tools/train/dataset.h"

namespace oktopk {

class Training {
 public:
  // The largest mlp:h,h/2 with at most `most` weights. UsageError if there is none.
  Training(Index most, std::uint64_t seed);

  const std::string& network() const { return network_; }
  std::vector<float> weights() const;  // initial, equal on all ranks

  // For one rank; borrows this object, which is not changed: ranks may share it.
  TrainingSource source(int rank) const;

 private:
  std::uint64_t seed_;
  LearningProblem problem_;
  std::string network_;
};

}  // namespace oktopk
