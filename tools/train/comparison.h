// SPDX-License-Identifier: Apache-2.0
// The results of several training runs on the same samples, as JSON. The table and the page are made from the JSON, so
// that `oktopk report` shows the same page from a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/train/trainer.h"

namespace oktopk {

struct Comparison {
  double floor = 0;  // the best possible test loss
  std::string transport;
  std::string command;  // that repeats it
  int P = 1;
  TrainOptions options;
  std::vector<TrainingRun> runs;
};

nlohmann::json to_json(const Comparison& comparison);

void print_training(const nlohmann::json& result);
nlohmann::json training_document(const nlohmann::json& result);  // for tools/report

}  // namespace oktopk
