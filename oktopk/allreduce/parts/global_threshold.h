// SPDX-License-Identifier: Apache-2.0
// The global threshold of circulant, steered without collectives of its own. Aim slightly above k,
// so that a deterministic trim brings exactly k.
//   * Feed-forward: the ranks' local thresholds travel as integer sums with the blocks; when their
//     mean rises, so does the global one.
//   * Feedback: all ranks hold the gathered entries, and every owner reports how many of its own
//     were taken because something arrived, and how many wait just below the threshold (NearTail).
//     The next step will see about as many arrivals, and with owner memory whatever was trimmed
//     now. Where that is less than the aim, the threshold falls as far as the missing entries need;
//     where it is more, it rises by the tail's slope.
//   * Refresh, on demand: when the local thresholds jump, or the last count was off, the ranks find
//     the exact threshold by counting (kth_sum.h).
// Whether to refresh depends on integers that all ranks share, so they decide alike. The threshold
// itself may differ in the last bit between machines: everyone applies the owners' bytes anyway.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/allreduce/parts/kth_sum.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/base/state.h"
#include "oktopk/sparse/tail.h"

namespace oktopk {

class GlobalThreshold {
 public:
  // Entries to aim at for k: all ranks compute the same.
  std::uint64_t aim(std::size_t k) const;

  // Takes the sums that came with the blocks; true when the ranks must refresh().
  bool follow(const BlockNote& summed, std::size_t k);

  // Collective: sets the threshold from all ranks' sums. `mine` holds at least the aim(k) largest
  // of this rank's, or all of them.
  void refresh(Communicator& comm, std::span<const float> mine, std::size_t k, Workspace& work);

  bool is_known() const { return known_; }
  Threshold value() const { return value_; }

  // One step, as all ranks saw it: the entries gathered before the trim, the sum of the owners'
  // reports, and the entries trimmed that owners remember.
  struct Gathered {
    std::span<const float> values;
    NearTail near;
    std::uint64_t remembered = 0;
    bool is_capped = false;  // an owner had more than it may send
  };
  void observe(const Gathered& seen, std::size_t k);

  // The most entries that a steady step is meant to gather; a step that gathers more is followed by
  // one that corrects it.
  static double most_gathered(double k);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  void fall(const NearTail& near, double missing);
  void rise(std::span<const float> gathered, double keep);
  void resize_window(const NearTail& near, std::size_t k);

  Threshold value_{.value = 0, .window = kWidest};
  bool known_ = false;
  std::uint64_t k_ = 0;
  std::int64_t last_log_threshold_ = 0;          // mean of the local ones, 1 / BlockNote::kOctave
  std::uint64_t deviation_ = kMaxOvershoot / 2;  // smoothed |count - aim| / aim, in 1/1000

  static constexpr std::uint64_t kMinOvershoot = 20;  // of k, in 1/1000
  static constexpr std::uint64_t kMaxOvershoot = 100;
  static constexpr float kWidest = 0x1p-3F;
  static constexpr float kNarrowest = 0x1p-16F;
  KthSumFinder finder_;
};

}  // namespace oktopk
