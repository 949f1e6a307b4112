// SPDX-License-Identifier: Apache-2.0
// The choice of preset auto for one stream of steps: made before the first step, then corrected by observed times in
// reviews (docs/tuning.md). Every decision depends only on values that are equal on all ranks: the problem, the
// profile, and observations that were reduced over the ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/tune/candidates.h"

namespace oktopk {

// A profile in a saved state.
void save(const Profile& profile, StateWriter& state);
Profile take_profile(StateReader& state);

class Tuner {
 public:
  Tuner(const Problem& problem, const Profile& profile, const ChoiceOptions& options);

  const Candidate& choice() const { return choice_; }
  const Problem& problem() const { return problem_; }
  const Profile& profile() const { return profile_; }

  // Chooses anew, as if nothing had been observed.
  void use(const Profile& profile);
  bool is_calibrated() const { return is_calibrated_; }  // by use()

  // One step of this rank with the present choice: its seconds and, where the exchange reduces by regions, the entries
  // that arrived in this rank's region and those left after merging; otherwise 0 and 0.
  void observe(double seconds, double arrived, double merged, bool refreshed = false);
  bool is_review_due() const;

  // {seconds of a step, share of the arrived entries that was left, share of the steps that refreshed}. review() takes
  // it reduced over the ranks, the first by minimum and the others by maximum, and returns whether the choice has
  // changed.
  using Summary = std::array<double, 3>;
  Summary summary() const;
  bool review(const Summary& reduced);

  void save(StateWriter& state) const;
  void load(StateReader& state);  // REQUIRES: the same problem and options

 private:
  double correction(const Candidate& candidate) const;
  std::string corrected_name(const Method& method) const;

  Problem problem_;
  Profile profile_;
  ChoiceOptions options_;
  bool is_calibrated_ = false;
  Candidate choice_;
  std::map<std::string, double> corrections_;  // observed seconds over predicted ones
  std::uint64_t steps_ = 0;                    // observed, since the last change
  std::vector<double> recent_;                 // seconds, since the choice or the last review
  double arrived_ = 0, merged_ = 0;
  double refreshes_ = 0;  // of `recent_`; not saved
};

}  // namespace oktopk
