// SPDX-License-Identifier: Apache-2.0
// The common part of rank.cc and thread_points.cc: options, the small training run, and lines for kill.py.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "oktopk/comm/communicator.h"
#include "tools/train/problem.h"
#include "tools/train/trainer.h"

namespace oktopk::kill {

struct Options {
  std::string transport = "tcp";
  std::uint64_t steps = 200;
  std::uint64_t seed = 1;
  double timeout = 10, silence = 3, join_timeout = 60;
  std::uint64_t stagger = 0, stagger_seed = 1;  // milliseconds, at most, before the rank looks for the others
  int struck_rank = -1;
  std::uint64_t at = 0;
  std::string kind;
  int pace = 200;             // microseconds before each exchange
  int points = 0, ranks = 5;  // threads
};

inline Communicator::Duration seconds(double value) {
  return std::chrono::duration_cast<Communicator::Duration>(std::chrono::duration<double>(value));
}

template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

inline const LearningProblem& problem() {
  static const LearningProblem made =
      make_teacher({.features = 24, .classes = 5, .hidden = 16, .train = 4096, .test = 1024});
  return made;
}

inline TrainOptions train_options(const Options& o) {
  TrainOptions options;
  options.reducer.preset = "circulant";
  options.reducer.density = 0.1;
  options.recipe.optimiser = "momentum";
  options.model = "mlp:24";
  options.steps = o.steps;
  options.batch = 8;
  options.seed = o.seed;
  options.points = 10;
  options.evaluations = 1;
  return options;
}

// Transport threads: many worlds, one after the other, each with one rank that is disturbed.
void run_points(const Options& o);

}  // namespace oktopk::kill
