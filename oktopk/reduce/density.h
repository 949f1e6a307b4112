// SPDX-License-Identifier: Apache-2.0
// How many entries each step sends: the stages of a warm-up, then k, which is fixed or follows a target.
//
// Adaptive density (docs/adaptive_density.md): every `interval` sparse steps the ranks compare which share of the
// accumulators' squared norm leaves in that step. k grows while the share is below the target and shrinks while it is
// above:
//
//   k <- k (target / share)^(1/2), by a factor of at most 1.25 up or down, within [least, most] n
//
// In the first n/k steps, while the residuals fill, k may only grow. With a budget, the mean density over all steps so
// far never exceeds it; entries that were not spent early may be spent later. This is arithmetic of integers that are
// equal on all ranks, without any transcendental function, so k is equal on all ranks too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "oktopk/reduce/reducer.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// k = density * n, at least 1 (n = 0: 0).
std::size_t entries_at(double density, Index n);
// The density of step `step`; 0 when the stages are over.
double density_at(const DensitySchedule& schedule, std::uint64_t step);
// UsageError unless all densities are in (0, 1].
void check_schedule(const DensitySchedule& schedule);
// ", warm-up 40 x 0.9", with every digit: a part of a description of options. with_warmup() replaces that part, and
// warmup_in() reads the stages back; UsageError where they cannot be read.
std::string describe(const DensitySchedule& schedule);
std::string with_warmup(std::string_view description, const DensitySchedule& schedule);
DensitySchedule warmup_in(std::string_view description);

// ", adaptive share 0.1, ..." with every digit; empty when it is off. UsageError when an option is unfit.
std::string describe(const AdaptiveDensityOptions& options);
inline constexpr std::string_view kAdaptiveMark = ", adaptive share ";  // begins the description

// One rank's share, to be summed over the ranks: ranks without anything to send do not count.
struct SentShare {
  static constexpr double kUnit = 4294967296.0;  // 2^32

  std::uint64_t units = 0;  // the share, in units of 2^-32
  std::uint64_t ranks = 0;

  // The share of two squared norms, of any scale.
  static SentShare of(double sent, double all);
  double mean() const;  // over the ranks; 0 when none counts
};

// The cost that comparing the shares adds to a step, spread over the interval.
Cost share_cost(int P, int interval);

class AdaptiveDensity {
 public:
  AdaptiveDensity() = default;  // off
  // `first`: k of the first step, before the budget. REQUIRES: describe() accepted the options, and first >= 1 unless
  // n = 0.
  AdaptiveDensity(const AdaptiveDensityOptions& options, Index n, std::size_t first);

  bool is_on() const { return interval_ > 0; }
  std::size_t k() const;                                                // of the next step
  std::size_t most() const { return static_cast<std::size_t>(most_); }  // the most that k() can become
  // Whether the ranks look at the share in the next step.
  bool is_due() const { return is_on() && (steps_ + 1) % interval_ == 0; }
  void count();                        // a step at k() was made
  void observe(const SentShare& sum);  // after count(): the step's share, summed over the ranks

  std::uint64_t steps() const { return steps_; }
  std::uint64_t spent() const { return spent_; }  // entries, over all steps

  // All that the next steps depend on besides the options, as integers.
  using Words = std::array<std::uint64_t, 3>;
  Words words() const;
  // Continues from words() of this or of other options. UsageError when they are no such words.
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

// The place of one stream of steps in its schedules.
class DensityPlan {
 public:
  DensityPlan(const ReducerOptions& options, Index n);

  std::size_t k() const { return k_; }            // after the warm-up; the first one where the density is adaptive
  std::uint64_t steps() const { return steps_; }  // made so far
  // The stages; none where the warm-up is over for good.
  DensitySchedule warmup() const { return has_ended_ ? DensitySchedule{} : warmup_; }
  const AdaptiveDensity& adaptive() const { return adaptive_; }
  AdaptiveDensity& adaptive() { return adaptive_; }

  // Properties of the next step.
  bool is_warm() const { return density() == 0; }  // the warm-up is over
  bool is_dense() const { return density() == 1; }
  bool adapts() const { return is_warm() && adaptive_.is_on(); }
  std::size_t entries() const;       // if it is sparse
  std::size_t most_entries() const;  // for a rank that does not know what the adaptive density observed

  void count_step() { ++steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }

  // The place, for Reducers of another layout that continue there: numbers per value of the gradient, equal on all
  // ranks.
  struct Pace {
    std::uint64_t steps = 0;           // made so far: the place in the warm-up
    std::uint64_t adaptive_steps = 0;  // of an adaptive density; 0: it has not begun, or is off
    double density = 0;                // of its next step, before the budget
    double spent = 0;                  // entries per value, over all its steps
  };
  Pace pace() const;
  // Local, but all ranks must do it together. UsageError, with nothing changed, after the first step, or when a number
  // is no part of a pace.
  void begin_at(const Pace& pace);
  // After begin_at(), for steps that were made with this warm-up: where it is over, it does not begin again. UsageError
  // inside of it, unless this plan's is the same up to here.
  void continue_after(const DensitySchedule& other);
  // Whatever the options say about the steps to come.
  void set_ended(bool has_ended) { has_ended_ = has_ended; }

 private:
  double density() const { return has_ended_ ? 0 : density_at(warmup_, steps_); }  // of the next step's stage; 0: none

  Index n_;
  std::size_t k_;
  DensitySchedule warmup_;
  AdaptiveDensity adaptive_;
  std::uint64_t steps_ = 0;
  bool has_ended_ = false;  // the warm-up, in an earlier run
};

}  // namespace oktopk
