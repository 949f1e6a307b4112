// SPDX-License-Identifier: Apache-2.0
// The global threshold of circulant, steered without collectives of its own. Aim slightly above k,
// so that a deterministic trim brings exactly k.
//   * Feed-forward: the ranks' local thresholds travel as integer sums with the blocks; when their
//     mean moves, so does the global one.
//   * Feedback: with its entries every owner reports a window of 25 bins (1/32 octave each) of the
//     magnitudes around the threshold; their sum gives the next threshold.
//   * Refresh, on demand: when the local thresholds jump, or the last count was off, the ranks add
//     up histograms (2 ceil(log2 P) small messages) and the threshold is set from those.
// Whether to refresh depends on integers that all ranks share, so they decide alike. The threshold
// itself may differ in the last bit between machines: everyone applies the owners' bytes anyway.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/device/device.h"

namespace oktopk {

// One owner's report, sent along with its share (docs/wire_format.md).
struct TailWindow {
  static constexpr int kBins = 25;
  std::uint32_t first_bin = 0;  // magnitude bin of counts[0]
  std::array<std::uint32_t, kBins> counts{};
  std::uint64_t above = 0;      // in higher bins
  std::uint64_t available = 0;  // all non-zero sums
};

class GlobalThreshold {
 public:
  // Entries to aim at for k: all ranks compute the same.
  std::uint64_t aim(std::size_t k) const;

  // Takes the sums that came with the blocks; true when the ranks must refresh().
  bool follow(const BlockNote& summed);

  // Collective: sets the threshold from the histogram of all ranks' sums.
  void refresh(Communicator& comm, const MagnitudeHistogram& mine, std::size_t k, Workspace& work);

  bool is_known() const { return known_; }
  float value() const { return value_; }
  TailWindow window(const MagnitudeHistogram& mine) const;

  // Takes all owners' windows and the number of entries gathered.
  void observe(std::span<const TailWindow> windows, std::uint64_t gathered, std::size_t k);

  void save(StateWriter& state) const;
  void load(StateReader& state);

 private:
  // The owners' windows, added.
  struct Tail {
    std::size_t first_bin = 0;
    std::array<std::uint64_t, TailWindow::kBins> counts{};
    std::uint64_t above = 0;
    std::uint64_t available = 0;
  };
  static Tail add_up(std::span<const TailWindow> windows);
  void correct(std::uint64_t gathered, std::uint64_t target);

  float value_ = 0;
  bool known_ = false;
  bool refreshed_ = false;  // in this step: the threshold stands at a bin's edge
  // Between two bin edges the tail is taken as log-linear; where it is not (owner memory is cut off
  // at the last threshold), the counts come out low or high, and this offsets the aim, in 1/1000.
  std::int64_t correction_ = 0;
  // After a count far too small (many equal magnitudes defeat interpolation), thresholds stay at
  // bin edges for this many steps.
  int careful_ = 0;
  std::int64_t last_log_threshold_ = 0;          // mean of the local ones, units of 2^-16
  std::uint64_t deviation_ = kMaxOvershoot / 2;  // smoothed |count - aim| / aim, in 1/1000

  static constexpr std::uint64_t kMinOvershoot = 20;  // of k, in 1/1000
  static constexpr std::uint64_t kMaxOvershoot = 100;
};

}  // namespace oktopk
