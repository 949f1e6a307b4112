// SPDX-License-Identifier: Apache-2.0
// The learning study: which choices keep sparse training up with dense. Every axis of a recipe is
// varied for SGD, momentum and Adam on one problem, over several seeds, and compared with dense at
// equal steps and at equal bytes (a dense run that may move no more bytes, with a schedule of its
// own). docs/learning.md reads the result.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/page.h"
#include "tools/train/trainer.h"

namespace oktopk {

// One row: a recipe and a residual rule, over all seeds.
struct StudyRow {
  std::string name;  // "owner memory, dense warm-up"
  Recipe recipe;
  ReducerOptions reducer;
  std::vector<double> losses, accuracies;  // test, at the end, by seed
  std::vector<double> gaps;                // loss / dense's loss of the same seed - 1
  double bytes = 0;                        // per rank, of the whole run, mean over the seeds
  double equal_bytes_steps = 0;            // a dense run of so many steps moves no more
  double equal_bytes_loss = 0;             // its loss, mean over the seeds
};

struct LearningStudy {
  std::string problem;
  std::string command;
  double floor = 0;
  int P = 1;
  int seeds = 3;
  TrainOptions base;
  std::vector<StudyRow> rows;  // dense first for each optimiser
};

// The rows for one optimiser, not yet run.
std::vector<StudyRow> study_rows(const std::string& optimiser, const TrainOptions& base);

// The same of another study: the recommended recipe with fixed densities, and with adaptive ones
// (oktopk/reduce/adaptive_density.h) that have the same budgets, or none.
std::vector<StudyRow> density_rows(const std::string& optimiser, const TrainOptions& base);

// Collective: fills in the rows; done(row) is called on rank 0 after each.
void run_study(Communicator& comm, const LearningProblem& problem, LearningStudy& study,
               const std::function<void(const StudyRow&)>& done);

// Line by line, as rows come in.
std::string study_head();
std::string study_line(const StudyRow& row);

nlohmann::json to_json(const LearningStudy& study);
Page make_page(const LearningStudy& study);

}  // namespace oktopk
