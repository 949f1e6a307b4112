// SPDX-License-Identifier: Apache-2.0
// The results of several training runs on the same samples, as JSON. The table and the page are made from the JSON, so
// that `oktopk report` shows the same page from a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/train/trainer.h"

namespace oktopk {

// `world`: "4 ranks (threads)". `floor`: the best possible test loss.
nlohmann::json training_result(const TrainOptions& options, const std::string& world, double floor,
                               const std::vector<TrainingRun>& runs);

void print_training(const nlohmann::json& result);
nlohmann::json training_document(const nlohmann::json& result);  // for tools/report

}  // namespace oktopk
