// SPDX-License-Identifier: Apache-2.0
// Global thresholds: the magnitude that about k of the sums on all ranks reach.
//   * find_kth_sum: the exact one, by counting. oktopk and circulant evaluate their thresholds with it.
//   * SumThreshold: of oktopk, reused between two evaluations.
//   * GlobalThreshold: of circulant, steered without collectives of its own.
// Whether to evaluate depends on integers that all ranks share, so they decide alike. A steered threshold may differ in
// the last bit between machines: everyone applies the owners' bytes anyway.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/tail.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// The k-th largest magnitude of values that lie on all ranks, without gathering them: a radix selection over the bits
// of |x|, six or seven per round; each round adds the counts of all ranks. (Ok-Topk's paper gathers the whole union.)
// COST: 5 L messages with L = ceil(log2 P), one of 520 and four of 264 bytes for each of the L; a few passes over this
// rank's values, each over fewer of them.
struct KthSum {
  std::uint64_t total = 0;   // non-zero values on all ranks
  float magnitude = 0;       // the k-th largest; the smallest non-zero one where there are fewer
  std::uint64_t larger = 0;  // values on all ranks that are larger than it
};

// Collective. REQUIRES: k >= 1 and equal on all ranks, values finite.
KthSum find_kth_sum(Communicator& comm, std::span<const float> values, std::uint64_t k, Workspace& work);
Cost kth_sum_cost(int P);

// By one of three rules (ThresholdRule):
//   paper      the pseudocode of Ok-Topk: evaluated every tau' steps, unchanged in between
//   published  the authors' released code: the same, and 0.8% up or down after a count beyond 4k/3 or below 2k/3
//   steered    ours, the default: the threshold moves on with the trend between the last two evaluations, and after
//   each
//              step by a part of a Newton step towards k, with the slope of the observed tail (Hill's estimator). A
//              step whose count leaves the band around k does not gather but evaluates the threshold. The interval
//              between planned evaluations doubles, up to 16 tau', when the count was near k, and halves when it was
//              not.
class SumThreshold {
 public:
  SumThreshold(ThresholdRule rule, int tau_prime)
      : rule_(rule), tau_prime_(static_cast<std::uint64_t>(tau_prime)), interval_(tau_prime_) {}

  float value() const { return value_; }

  // Whether step `count` must evaluate before it knows how many sums reach the threshold.
  bool is_unknown(std::uint64_t count, std::size_t k) const;
  // Whether it must evaluate although it knows that `reached` sums do.
  bool is_refuted(std::uint64_t count, std::uint64_t reached, std::size_t k);

  // The exact threshold of step `count`, and the number of non-zero sums: with fewer than k the next step evaluates
  // again.
  void set(float value, std::uint64_t available, std::uint64_t count, std::size_t k);
  // Takes the sums that a step gathered: all that reach the threshold.
  void observe(std::span<const float> gathered, std::size_t k);

  // The most sums that a step gathers without an evaluation.
  static double most_gathered(double k);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  ThresholdRule rule_;
  std::uint64_t tau_prime_;
  float value_ = 0;
  float exact_ = 0;   // at the last evaluation, or when one was found to be needless
  double trend_ = 0;  // steered: of ln(threshold), per step
  double off_ = 0;    // steered: ln(count / k) of the last step that did not evaluate
  bool known_ = false;
  std::uint64_t k_ = 0;          // of the last step: another k needs another threshold
  std::uint64_t evaluated_ = 0;  // the step of the last evaluation
  std::uint64_t interval_;       // steered: steps until the next planned one
};

// Aims slightly above k, so that a deterministic trim leaves exactly k.
//   * Feed-forward: the ranks' local thresholds travel as integer sums with the blocks; when their mean rises, so does
//     the global threshold.
//   * Feedback: all ranks hold the gathered entries, and every owner reports how many of its entries were taken because
//     something arrived, and how many wait just below the threshold (NearTail). The next step will see about as many
//     arrivals, and with owner memory the entries trimmed now. Where that is less than the aim, the threshold falls as
//     far as the missing entries need; where it is more, it rises by the tail's slope.
//   * Refresh, on demand: when the local thresholds jump, or the last count was off, the ranks find the exact threshold
//     by counting.
class GlobalThreshold {
 public:
  // Entries to aim at for k: all ranks compute the same.
  std::uint64_t aim(std::size_t k) const;

  // Takes the sums that came with the blocks; true when the ranks must refresh().
  bool follow(const BlockTally& summed, std::size_t k);

  // Collective: sets the threshold from all ranks' sums. `mine` holds at least the aim(k) largest sums of this rank, or
  // all of them.
  void refresh(Communicator& comm, std::span<const float> mine, std::size_t k, Workspace& work);

  bool is_known() const { return known_; }
  Threshold value() const { return value_; }

  // One step, as all ranks saw it.
  struct Gathered {
    std::span<const float> values;  // before the trim
    NearTail near;                  // sum of the owners' reports
    std::uint64_t remembered = 0;   // entries trimmed that owners remember
    bool is_capped = false;         // an owner had more than it may send
  };
  void observe(const Gathered& seen, std::size_t k);

  // The most entries that a steady step is meant to gather; a step that gathers more is followed by a correction.
  static double most_gathered(double k);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  void fall(const NearTail& near, double missing);
  void rise(std::span<const float> gathered, double keep);
  void resize_window(const NearTail& near, std::size_t k);

  static constexpr std::uint64_t kMinOvershoot = 20;  // of k, in 1/1000
  static constexpr std::uint64_t kMaxOvershoot = 100;
  static constexpr float kWidest = 0x1p-3F;
  static constexpr float kNarrowest = 0x1p-16F;

  Threshold value_{.value = 0, .window = kWidest};
  bool known_ = false;
  std::uint64_t k_ = 0;
  std::int64_t last_log_threshold_ = 0;          // mean of the local ones, in units of 1 / BlockTally::kOctave
  std::uint64_t deviation_ = kMaxOvershoot / 2;  // smoothed |count - aim| / aim, in 1/1000
};

}  // namespace oktopk
