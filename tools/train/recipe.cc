// SPDX-License-Identifier: Apache-2.0
#include "tools/train/recipe.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

void check(const Recipe& recipe) {
  const std::string& o = recipe.optimiser;
  require(o == "sgd" || o == "momentum" || o == "adam", "unknown optimiser '", o, "'; there are: sgd, momentum, adam");
  require(recipe.schedule == "cosine" || recipe.schedule == "constant", "unknown schedule '", recipe.schedule,
          "'; there are: cosine, constant");
  require(recipe.learning_rate >= 0 && std::isfinite(recipe.learning_rate), "learning rate = ", recipe.learning_rate,
          ", but it must be positive (0: the optimiser's default)");
  find_adam_mode(recipe.adam);
  find_sparsify(recipe.sparsify);
  parse_start(recipe.start, 1, 1);
}

float learning_rate_at(const Recipe& recipe, std::uint64_t step, std::uint64_t steps) {
  const float tuned = recipe.optimiser == "adam" ? 4e-3F : recipe.optimiser == "sgd" ? 0.4F : 0.04F;
  const float peak = recipe.learning_rate > 0 ? recipe.learning_rate : tuned;
  if (recipe.schedule == "constant" || steps == 0) return peak;
  const double share = static_cast<double>(step) / static_cast<double>(steps);
  return peak * static_cast<float>(0.5 * (1 + std::cos(std::numbers::pi * share)));
}

DensitySchedule parse_start(const std::string& text, std::uint64_t steps, double density) {
  if (text == "none") return {};
  if (text == "recipe") return oktopk::recipe(steps).warmup;
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon);
  const char* number = text.c_str() + std::min(colon + 1, text.size());
  char* end = nullptr;
  const double share = std::strtod(number, &end);
  require((kind == "dense" || kind == "dgc") && end != number && *end == '\0' && share >= 0 && share <= 1, "start '",
          text, "': it must be none, recipe, dense:SHARE or dgc:SHARE with a share of the steps in [0, 1]");
  const auto length = static_cast<std::uint64_t>(share * static_cast<double>(steps));
  return kind == "dense" ? dense_warmup(length) : dgc_warmup(length, density);
}

std::unique_ptr<Optimiser> make_optimiser(Synchroniser& sync, const Recipe& recipe) {
  check(recipe);
  const float rate = learning_rate_at(recipe, 0, 0);
  if (recipe.optimiser == "adam")
    return std::make_unique<SparseAdamW>(sync, AdamOptions{.learning_rate = rate,
                                                           .beta2 = recipe.beta2,
                                                           .weight_decay = recipe.weight_decay,
                                                           .clip_norm = recipe.clip_norm,
                                                           .mode = find_adam_mode(recipe.adam),
                                                           .sparsify = find_sparsify(recipe.sparsify),
                                                           .look_ahead = recipe.look_ahead});
  return std::make_unique<SparseSGD>(sync, SgdOptions{.learning_rate = rate,
                                                      .momentum = recipe.optimiser == "sgd" ? 0 : recipe.momentum,
                                                      .weight_decay = recipe.weight_decay,
                                                      .clip_norm = recipe.clip_norm,
                                                      .sparsify = find_sparsify(recipe.sparsify),
                                                      .interval_aware = recipe.interval_momentum,
                                                      .factor_masking = recipe.factor_masking,
                                                      .look_ahead = recipe.look_ahead});
}

std::string to_string(const Recipe& recipe) {
  std::string text = recipe.optimiser;
  const bool is_interval_aware =
      recipe.optimiser == "adam" ? recipe.adam == "interval_aware" : recipe.interval_momentum;
  if (recipe.sparsify == "updates")
    text += ", updates";
  else if (recipe.optimiser != "sgd")
    text += is_interval_aware ? ", interval-aware" : recipe.optimiser == "adam" ? ", " + recipe.adam : ", published";
  if (recipe.factor_masking) text += ", masking";
  if (recipe.look_ahead) text += ", look-ahead";
  if (recipe.start != "none") text += ", warm-up " + recipe.start;
  if (!recipe.flush) text += ", no flush";
  return text;
}

nlohmann::json to_json(const Recipe& recipe) {
  nlohmann::json json = recipe;
  json["learning_rate"] = learning_rate_at(recipe, 0, 0);
  return json;
}

}  // namespace oktopk
