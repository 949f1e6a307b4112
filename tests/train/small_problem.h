// SPDX-License-Identifier: Apache-2.0
// A problem and a run that take milliseconds.
#pragma once

#include "tools/train/problem.h"
#include "tools/train/trainer.h"

namespace oktopk {

inline const LearningProblem& small_problem() {
  static const LearningProblem problem =
      make_teacher({.features = 12, .classes = 4, .hidden = 8, .train = 512, .test = 128});
  return problem;
}

inline TrainOptions small_run(const std::string& preset, std::uint64_t steps = 30) {
  TrainOptions options;
  options.reducer.preset = preset;
  options.reducer.density = 0.05;
  options.model = "mlp:16";
  options.steps = steps;
  options.batch = 4;
  options.points = 10;
  options.evaluations = 2;
  return options;
}

}  // namespace oktopk
