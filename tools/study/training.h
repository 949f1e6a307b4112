// SPDX-License-Identifier: Apache-2.0
// The problem and the network that the studies xi and learning train.
#pragma once

#include <string>

#include "oktopk/base/error.h"
#include "tools/train/network.h"
#include "tools/train/problem.h"

namespace oktopk {

struct SmallTraining {
  LearningProblem problem;
  std::string model;
};

// The largest mlp:h,h/2 with at most `most` weights. UsageError if there is none to speak of.
inline SmallTraining small_training(Index most, const TeacherOptions& options) {
  constexpr Index kFewest = 512;
  require(most >= kFewest, "n = ", most, ", but training needs at least ", kFewest, " weights");
  const auto weights_of = [&](int hidden) {
    return (options.features + 1) * hidden + (hidden + 1) * (hidden / 2) + (hidden / 2 + 1) * options.classes;
  };
  int hidden = 2;
  while (weights_of(hidden + 2) <= static_cast<int>(most)) hidden += 2;
  return {make_teacher(options), "mlp:" + std::to_string(hidden) + "," + std::to_string(hidden / 2)};
}

}  // namespace oktopk
