// SPDX-License-Identifier: Apache-2.0
// What a comparison of training runs shows: the table at the end, the JSON, and the page with the
// plots.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/page.h"
#include "tools/train/trainer.h"

namespace oktopk {

struct Comparison {
  std::string problem;  // "teacher" or "mnist"
  double floor = 0;     // the best possible test loss, where it is known
  std::string transport;
  std::string command;  // that repeats it
  int P = 1;
  TrainOptions options;
  AdaptiveDensityOptions adaptive;  // of the sparse runs
  std::vector<TrainingRun> runs;
};

void print_table(const Comparison& comparison);
nlohmann::json to_json(const Comparison& comparison);
Page make_page(const Comparison& comparison);

// The place of a preset in the palette: the same in all plots.
int colour_of(const std::string& preset);

}  // namespace oktopk
