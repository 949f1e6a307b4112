// SPDX-License-Identifier: Apache-2.0
#include "tools/train/recipe.h"

#include <cmath>
#include <numbers>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

struct Warmup {
  std::string kind;
  double share = 0;
};

Warmup split_warmup(const std::string& text) {
  if (text == "none") return {"none", 0};
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  double share = -1;
  try {
    std::size_t used = 0;
    if (colon != std::string::npos) share = std::stod(text.substr(colon + 1), &used);
    if (colon != std::string::npos && colon + 1 + used != text.size()) share = -1;
  } catch (const std::exception&) {
    share = -1;
  }
  require((kind == "dense" || kind == "dgc") && share >= 0 && share <= 1, "warm-up '", text,
          "': it must be none, dense:SHARE or dgc:SHARE with a share of the steps in [0, 1]");
  return {kind, share};
}

}  // namespace

// The defaults of a Recipe are what is best for all; but to Adam a flush brings coordinates of
// which it knows least.
Recipe recommended_recipe(const std::string& optimiser) {
  Recipe recipe;
  recipe.optimiser = optimiser;
  recipe.flush = optimiser != "adam";
  return recipe;
}

void check(const Recipe& recipe) {
  require(recipe.optimiser == "sgd" || recipe.optimiser == "momentum" || recipe.optimiser == "adam",
          "unknown optimiser '", recipe.optimiser, "'; there are: sgd, momentum, adam");
  require(recipe.schedule == "cosine" || recipe.schedule == "constant", "unknown schedule '", recipe.schedule,
          "'; there are: cosine, constant");
  require(recipe.learning_rate >= 0 && std::isfinite(recipe.learning_rate), "learning rate = ", recipe.learning_rate,
          ", but it must be positive (0: the optimiser's default)");
  split_warmup(recipe.warmup);
}

float default_learning_rate(const Recipe& recipe) {
  if (recipe.optimiser == "adam") return 4e-3F;
  return recipe.optimiser == "sgd" ? 0.4F : 0.04F;
}

float learning_rate_at(const Recipe& recipe, std::uint64_t step, std::uint64_t steps) {
  const float peak = recipe.learning_rate > 0 ? recipe.learning_rate : default_learning_rate(recipe);
  if (recipe.schedule == "constant" || steps == 0) return peak;
  const double share = static_cast<double>(step) / static_cast<double>(steps);
  return peak * static_cast<float>(0.5 * (1 + std::cos(std::numbers::pi * share)));
}

DensitySchedule parse_warmup(const std::string& text, std::uint64_t steps, double density) {
  const Warmup warmup = split_warmup(text);
  const auto length = static_cast<std::uint64_t>(warmup.share * static_cast<double>(steps));
  if (warmup.kind == "none") return {};
  return warmup.kind == "dense" ? dense_warmup(length) : dgc_warmup(length, density);
}

std::unique_ptr<Optimiser> make_optimiser(Synchroniser& sync, const Recipe& recipe) {
  check(recipe);
  const float rate = learning_rate_at(recipe, 0, 0);
  if (recipe.optimiser == "adam")
    return std::make_unique<SparseAdam>(sync, AdamOptions{.learning_rate = rate,
                                                          .beta2 = recipe.beta2,
                                                          .weight_decay = recipe.weight_decay,
                                                          .clip_norm = recipe.clip_norm,
                                                          .mode = recipe.adam,
                                                          .sparsify = recipe.sparsify,
                                                          .look_ahead = recipe.look_ahead});
  return std::make_unique<SparseSgd>(sync, SgdOptions{.learning_rate = rate,
                                                      .momentum = recipe.optimiser == "sgd" ? 0 : recipe.momentum,
                                                      .weight_decay = recipe.weight_decay,
                                                      .clip_norm = recipe.clip_norm,
                                                      .sparsify = recipe.sparsify,
                                                      .interval_aware = recipe.interval_momentum,
                                                      .factor_masking = recipe.factor_masking,
                                                      .look_ahead = recipe.look_ahead});
}

std::string to_string(const Recipe& recipe) {
  std::string text = recipe.optimiser;
  if (recipe.optimiser == "adam" && recipe.sparsify == Sparsify::gradients)
    text += recipe.adam == AdamMode::interval_aware ? ", interval-aware" : ", " + std::string(to_string(recipe.adam));
  if (recipe.optimiser == "momentum" && recipe.sparsify == Sparsify::gradients)
    text += recipe.interval_momentum ? ", interval-aware" : ", published";
  if (recipe.sparsify == Sparsify::updates) text += ", updates";
  if (recipe.factor_masking) text += ", masking";
  if (recipe.look_ahead) text += ", look-ahead";
  if (recipe.warmup != "none") text += ", warm-up " + recipe.warmup;
  if (!recipe.flush) text += ", no flush";
  return text;
}

nlohmann::json to_json(const Recipe& recipe) {
  return {{"optimiser", recipe.optimiser},
          {"learning_rate", learning_rate_at(recipe, 0, 0)},
          {"momentum", recipe.momentum},
          {"beta2", recipe.beta2},
          {"weight_decay", recipe.weight_decay},
          {"clip_norm", recipe.clip_norm},
          {"schedule", recipe.schedule},
          {"adam", to_string(recipe.adam)},
          {"interval_momentum", recipe.interval_momentum},
          {"sparsify", to_string(recipe.sparsify)},
          {"factor_masking", recipe.factor_masking},
          {"look_ahead", recipe.look_ahead},
          {"flush", recipe.flush},
          {"warmup", recipe.warmup}};
}

}  // namespace oktopk
