// SPDX-License-Identifier: Apache-2.0
// Preset auto (reducer.h): the tuner's choice in place of a preset. Made by the profile that was
// given, or by one that is measured before the first step; corrected by what steps take. Changing
// the exchange loses nothing: an owner takes what it remembers into its residual.
#include "oktopk/reduce/reducer_auto.h"

#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"

namespace oktopk {

Tuner Reducer::make_tuner() const {
  const Problem problem{.n = static_cast<double>(n()), .k = static_cast<double>(k_), .P = comm_.size()};
  ChoiceOptions choice = options_.choice;
  choice.groups = false;  // see NodeReducer
  return {problem, options_.profile.value_or(Profile{}), choice};
}

std::string describe_auto(const ReducerOptions& options) {
  std::ostringstream text;
  text << "preset auto, coarsest value coding "
       << value_codings()[static_cast<std::size_t>(options.choice.coarsest)].name << ", residual "
       << to_string(options.allreduce.residual) << ", selector "
       << (options.selector ? static_cast<int>(*options.selector) : -1) << ", profile ";
  if (options.profile) {
    StateWriter prices;
    save(*options.profile, prices);
    text << hash_bytes(prices.seal());
  } else {
    text << "measured";
  }
  text << ", overrides " << to_string(options.choice.overrides) << ", preference " << options.choice.preference;
  for (const std::string& preset : options.choice.presets) text << ", " << preset;
  return text.str();
}

void Reducer::use(const Profile& profile) {
  require(tuner_.has_value() && !tuner_->is_calibrated(),
          "reducer: a profile is for preset auto, before the first step");
  if (options_.profile) return;
  const Method before = tuner_->choice().method;
  tuner_->use(profile);
  if (tuner_->choice().method != before) adopt_choice();
}

void Reducer::adopt_choice() {
  fold_memory();
  replace(make_parts(tuner_));
}

bool Reducer::is_calibration_due() const {
  return tuner_ && !tuner_->is_calibrated() && !options_.profile && comm_.size() > 1;
}

// Collective.
void Reducer::calibrate_first(std::optional<ExternalPrice> external) {
  if (!is_calibration_due()) return;
  measured_ = calibrate(comm_, {.cpu = options_.cpu, .external_dense = external});
  use(*measured_);
}

// Collective when it is due, which depends on the number of steps alone. Between two steps, because
// what the last one sent and gave is still looked at after it.
void Reducer::review() {
  if (comm_.size() == 1 || !tuner_->is_review_due()) return;
  // The shortest time: who came last waited for nobody.
  Tuner::Summary summary = tuner_->summary();
  summary[0] = -summary[0];
  allreduce_small(comm_, std::span<double>(summary), Reduction::max, work_);
  summary[0] = -summary[0];
  if (tuner_->review(summary)) adopt_choice();
}

void Reducer::observe() {
  if (comm_.size() == 1) return;  // nobody to review it with
  tuner_->observe(times_.select + times_.exchange + times_.settle, static_cast<double>(outcome_.arrived),
                  static_cast<double>(outcome_.merged));
}

}  // namespace oktopk
