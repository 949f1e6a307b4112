// SPDX-License-Identifier: Apache-2.0
// The choice for one stream of steps: made before the first, then corrected by what is observed.
// Every decision depends only on values that are equal on all ranks: the problem, the profile, and
// observations after they were reduced over the ranks.
//
// A review compares the time of the steps with the prediction. The ratio corrects that preset's
// predictions from then on, and observed unions correct the union curve of all. A preset that was
// never run stays at its prediction; beside an external dense, at the least correction of those
// that were. It changes the choice when another one is faster by more than the noise. Reviews come
// 16, 64, 256, 1024 steps after the last change, then every 1024.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/tune/choose.h"

namespace oktopk {

class Tuner {
 public:
  Tuner(const Problem& problem, const Profile& profile, const ChoiceOptions& options);

  const Candidate& choice() const { return choice_; }
  const Problem& problem() const { return problem_; }
  const Profile& profile() const { return profile_; }

  // Chooses anew, as if nothing had been observed.
  void use(const Profile& profile);
  bool is_calibrated() const { return is_calibrated_; }  // use() was called

  // What this rank saw of a step with the present choice: its seconds; and, where the exchange
  // reduces by regions, the entries that came to this rank's region and those left after merging.
  // 0, 0 otherwise.
  void observe(double seconds, double arrived, double merged);
  bool is_review_due() const;

  // Seconds of a step, and the share of what arrived that was left. Reduced over the ranks, the
  // first by minimum, the second by maximum, it is what review() takes. True: another choice.
  using Summary = std::array<double, 2>;
  Summary summary() const;
  bool review(const Summary& reduced);

  void save(StateWriter& state) const;
  // Into a tuner of the same problem and options.
  void load(StateReader& state);

 private:
  std::vector<Candidate> corrected() const;
  double correction(const Candidate& candidate) const;
  double least_of_ours() const;
  std::string corrected_name(const Method& method) const;
  void start_over();

  Problem problem_;
  Profile profile_;
  ChoiceOptions options_;
  bool is_calibrated_ = false;
  Candidate choice_;
  std::map<std::string, double> corrections_;  // observed seconds over predicted ones
  std::uint64_t steps_ = 0;                    // observed, since the last change
  std::vector<double> recent_;                 // seconds, since the choice or the last review
  double arrived_ = 0, merged_ = 0;
};

}  // namespace oktopk
