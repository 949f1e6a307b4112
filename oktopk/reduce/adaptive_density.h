// SPDX-License-Identifier: Apache-2.0
// How many entries a sparse step sends, when the density follows a target instead of being fixed.
// Every `interval` sparse steps the ranks compare which share of the accumulators' squared norm
// leaves in that step; k grows while the share is below the target and shrinks while it is above:
//
//   k <- k (target / share)^(1/2), by a factor of at most 1.25 up or down, within [least, most] n
//
// In the first n/k steps, while the residuals fill, k may only grow.
// With a budget, the mean density over all steps so far never exceeds it: what was not spent early
// may be spent later. Arithmetic only, of integers that are equal on all ranks (Reducer exchanges
// them: reducer_adaptive.cc). No transcendental function is called, so k is equal on all ranks,
// too. Its use and a study of it:
// docs/adaptive_density.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/sparse/coo.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

struct AdaptiveDensityOptions {
  double target_share = 0;  // of the squared norm, in (0, 1); 0: off, the density is fixed
  double least = 0;         // density; 0: a tenth of the first one, at most the budget
  double most = 0;          // density; 0: ten times the first one, at most 1
  double budget = 0;        // bound of the mean density over all steps so far; 0: none
  int interval = 32;        // sparse steps between two looks at the share
};

// ", adaptive share 0.1, ..." with every digit; empty when it is off. UsageError that names the
// value and the rule when an option is unfit.
std::string describe(const AdaptiveDensityOptions& options);
// Begins the description.
inline constexpr std::string_view kAdaptiveMark = ", adaptive share ";

// One rank's share, to be summed over the ranks: ranks without anything to send do not count.
struct SentShare {
  static constexpr double kUnit = 4294967296.0;  // 2^32

  std::uint64_t units = 0;  // the share, in units of 2^-32
  std::uint64_t ranks = 0;

  // The share of the squared norms, of any scale.
  static SentShare of(double sent, double all);
  double mean() const;  // over the ranks; 0 when none counts
};

// The cost that comparing the shares adds to a step, spread over the interval.
Cost share_cost(int P, int interval);

class AdaptiveDensity {
 public:
  AdaptiveDensity() = default;  // off
  // `first`: k of the first step, before the budget. REQUIRES: describe() accepted the options, and
  // first >= 1 unless n = 0.
  AdaptiveDensity(const AdaptiveDensityOptions& options, Index n, std::size_t first);

  bool is_on() const { return interval_ > 0; }
  // k of the next step.
  std::size_t k() const;
  // The most that k() can become.
  std::size_t most() const { return static_cast<std::size_t>(most_); }
  // Whether the next step is one in which the ranks look at the share.
  bool is_due() const { return is_on() && (steps_ + 1) % interval_ == 0; }
  // A step at k() was made.
  void count();
  // The same step's share, summed over the ranks: after count().
  void observe(const SentShare& sum);

  std::uint64_t steps() const { return steps_; }
  std::uint64_t spent() const { return spent_; }  // entries, over all steps

  // All that the next steps depend on besides the options, as integers.
  using Words = std::array<std::uint64_t, 3>;
  Words words() const;
  // Goes on from words() of this or of other options. UsageError when they are no such words.
  void resume(const Words& words);

 private:
  std::uint64_t allowed(std::uint64_t steps) const;

  double target_ = 0;
  double least_ = 0, most_ = 0;  // entries
  double budget_ = 0;            // entries per step; 0: none
  std::uint64_t interval_ = 0;
  std::uint64_t turn_ = 0;  // steps in which all entries could have been sent once
  double wanted_ = 0;       // entries of the next step, before the budget
  std::uint64_t steps_ = 0;
  std::uint64_t spent_ = 0;
};

}  // namespace oktopk
