// SPDX-License-Identifier: Apache-2.0
// How to train: everything besides the allreduce that decides whether sparse training keeps up with dense. Each axis
// of the learning study (lab/study/learning.cc) is a field here and an option of `oktopk train`.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/density.h"

namespace oktopk {

// The defaults, together with owner memory, are what docs/learning.md recommends for SGD.
struct Recipe {
  std::string optimiser = "sgd";  // sgd, momentum or adam
  float learning_rate = 0;        // 0: tuned for dense on the generated problem
  float momentum = 0.9F;
  float beta2 = 0.999F;
  float weight_decay = 0;
  float clip_norm = 0;
  std::string schedule = "cosine";  // of the learning rate: cosine or constant
  std::string adam = "interval_aware";
  bool interval_momentum = true;  // of gradients; false: published
  std::string sparsify = "gradients";
  bool factor_masking = false;
  bool look_ahead = false;
  bool flush = true;                 // apply unsent values after the last step
  std::string start = "dense:0.02";  // none, dense:SHARE or dgc:SHARE of the steps, or recipe
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Recipe, optimiser, learning_rate, momentum, beta2, weight_decay, clip_norm, schedule,
                                   adam, interval_momentum, sparsify, factor_masking, look_ahead, flush, start)

// A flush harms Adam: it brings coordinates that Adam has hardly seen.
inline bool recommends_flush(const std::string& optimiser) { return optimiser != "adam"; }

// UsageError that names the value and the rule.
void check(const Recipe& recipe);

// At `step` of `steps`; the peak if there are none.
float learning_rate_at(const Recipe& recipe, std::uint64_t step, std::uint64_t steps);

// Reads "dense:0.1" and the like, for a run of so many steps at `density`; "recipe": as the library's recipe() begins.
DensitySchedule parse_start(const std::string& text, std::uint64_t steps, double density);

std::unique_ptr<Optimiser> make_optimiser(Synchroniser& sync, const Recipe& recipe);

// "momentum, updates, look-ahead, warm-up dense:0.1": the differences from the plainest recipe.
std::string to_string(const Recipe& recipe);

// With the learning rate that is used.
nlohmann::json to_json(const Recipe& recipe);

}  // namespace oktopk
