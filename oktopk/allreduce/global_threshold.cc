// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/global_threshold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace oktopk {
namespace {

constexpr std::size_t kFine = kBinsPerOctave;            // bins per octave
constexpr std::size_t kCoarse = kMagnitudeBins / kFine;  // octaves
constexpr std::int64_t kJump = 9455;                     // 0.1 nepers in units of 2^-16 octaves
constexpr double kLogUnit = 65536;
constexpr int kCarefulSteps = 32;

// Magnitudes lower .. upper: `at_lower` entries lie above the one, `at_upper` above the other.
struct Stretch {
  float lower;
  float upper;
  std::uint64_t at_lower;
  std::uint64_t at_upper;
};

// The magnitude inside the stretch above which `aim` entries lie: log-linear, as tails are.
float interpolate(const Stretch& s, std::uint64_t aim) {
  if (s.lower <= 0 || aim == 0 || s.at_lower <= aim) return s.lower;
  const auto low = static_cast<double>(s.at_lower);
  const double high = std::max(0.5, static_cast<double>(s.at_upper));
  if (high >= low) return s.lower;
  // The last finite bin's edge is Inf.
  const float upper = std::min(s.upper, std::numeric_limits<float>::max());
  const double share = std::log(low / static_cast<double>(aim)) / std::log(low / high);
  return static_cast<float>(s.lower *
                            std::pow(double{upper} / s.lower, std::clamp(share, 0.0, 1.0)));
}

}  // namespace

std::uint64_t GlobalThreshold::aim(std::size_t k) const {
  const std::uint64_t overshoot = std::clamp(2 * deviation_, kMinOvershoot, kMaxOvershoot);
  return k + (k * overshoot + 999) / 1000;
}

bool GlobalThreshold::follow(const BlockNote& summed) {
  if (summed.contributors == 0) return !known_;
  const std::int64_t mean = summed.log_threshold / std::int64_t{summed.contributors};
  const std::int64_t change = known_ ? mean - last_log_threshold_ : 0;
  last_log_threshold_ = mean;
  value_ *= static_cast<float>(std::exp2(static_cast<double>(change) / kLogUnit));
  if (std::abs(change) > kJump) known_ = false;
  return !known_;
}

// First the octaves, then the bins of the octave in which the aim lies: 1 KiB + 256 B per rank.
void GlobalThreshold::refresh(Communicator& comm, const MagnitudeHistogram& mine, std::size_t k,
                              Workspace& work) {
  std::array<std::uint32_t, kCoarse> octaves{};
  for (std::size_t bin = 0; bin < kMagnitudeBins; ++bin)
    octaves[bin / kFine] += static_cast<std::uint32_t>(mine[bin]);
  allreduce_small(comm, std::span<std::uint32_t>(octaves), Reduction::sum, work);
  const std::uint64_t target = aim(k);
  std::size_t octave = kCoarse - 1;
  std::uint64_t above = 0;
  while (octave > 0 && above + octaves[octave] < target) above += octaves[octave--];

  std::array<std::uint64_t, kFine> fine{};
  std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(octave * kFine), kFine, fine.begin());
  allreduce_small(comm, std::span<std::uint64_t>(fine), Reduction::sum, work);
  std::size_t bin = kFine - 1;
  while (bin > 0 && above + fine[bin] < target) above += fine[bin--];
  // The bin's edge, without interpolation: never fewer than the aim, even if all lie in one point.
  value_ = magnitude_bin_edge(octave * kFine + bin);
  known_ = true;
  refreshed_ = true;
}

TailWindow GlobalThreshold::window(const MagnitudeHistogram& mine) const {
  TailWindow window;
  const std::size_t centre = magnitude_bin(value_);
  const std::size_t half = TailWindow::kBins / 2;
  window.first_bin = static_cast<std::uint32_t>(
      std::clamp(centre, half, kMagnitudeBins - TailWindow::kBins + half) - half);
  for (std::size_t i = 0; i < TailWindow::kBins; ++i)
    window.counts[i] = static_cast<std::uint32_t>(mine[window.first_bin + i]);
  window.above = std::accumulate(
      mine.begin() + static_cast<std::ptrdiff_t>(window.first_bin + TailWindow::kBins), mine.end(),
      std::uint64_t{0});
  window.available = std::accumulate(mine.begin(), mine.end(), std::uint64_t{0});
  return window;
}

GlobalThreshold::Tail GlobalThreshold::add_up(std::span<const TailWindow> windows) {
  Tail tail;
  tail.first_bin = windows[0].first_bin;
  for (const TailWindow& w : windows) {
    tail.above += w.above;
    tail.available += w.available;
    for (std::size_t i = 0; i < w.counts.size(); ++i) {
      const std::size_t bin = w.first_bin + i;  // machines may disagree on the centre by one bin
      if (bin >= tail.first_bin + tail.counts.size()) {
        tail.above += w.counts[i];
      } else if (bin >= tail.first_bin) {
        tail.counts[bin - tail.first_bin] += w.counts[i];
      }
    }
  }
  return tail;
}

void GlobalThreshold::observe(std::span<const TailWindow> windows, std::uint64_t gathered,
                              std::size_t k) {
  const std::uint64_t target = aim(k);
  const Tail tail = add_up(windows);
  if (tail.available <= target) {  // everything fits; near the limit the next step looks first
    value_ = 0;
    known_ = 2 * tail.available <= target;
    return;
  }
  correct(gathered, target);
  // The bin in which the corrected aim lies, counted from above.
  const auto goal =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(target) * (1000 + correction_) / 1000);
  std::size_t bin = tail.counts.size() - 1;
  std::uint64_t over = tail.above;
  while (bin > 0 && over + tail.counts[bin] < goal) over += tail.counts[bin--];
  if (tail.above >= goal || over + tail.counts[bin] < goal) {
    known_ = false;  // outside of the window
    return;
  }
  Stretch stretch{magnitude_bin_edge(tail.first_bin + bin),
                  magnitude_bin_edge(tail.first_bin + bin + 1), over + tail.counts[bin], over};
  if (careful_ > 0) {
    --careful_;
    value_ = stretch.lower;
    return;
  }
  // At the last threshold the tail has a cliff: below it owners hold what they did not send yet,
  // above it is only what has just arrived. How many lie above it is known, too.
  if (stretch.lower < value_ && value_ < stretch.upper && gathered >= stretch.at_upper &&
      gathered <= stretch.at_lower) {
    if (gathered >= goal) {
      stretch.lower = value_;
      stretch.at_lower = gathered;
    } else {
      stretch.upper = value_;
      stretch.at_upper = gathered;
    }
  }
  value_ = interpolate(stretch, goal);
}

// Judges the last threshold by what it yielded. One that was put at a bin's edge on purpose may let
// too many through.
void GlobalThreshold::correct(std::uint64_t gathered, std::uint64_t target) {
  const bool at_edge = refreshed_ || careful_ > 0;
  refreshed_ = false;
  if (at_edge && gathered >= target) return;
  const std::int64_t off = static_cast<std::int64_t>(gathered) - static_cast<std::int64_t>(target);
  const auto size = static_cast<std::uint64_t>(std::abs(off));
  const auto noise = static_cast<std::uint64_t>(2 * std::sqrt(static_cast<double>(target)));
  const auto relative =
      std::clamp<std::int64_t>(1000 * off / static_cast<std::int64_t>(target), -200, 200);
  deviation_ = (7 * deviation_ + static_cast<std::uint64_t>(std::abs(relative)) + 4) / 8;
  correction_ = std::clamp<std::int64_t>(correction_ - relative / 4, -300, 300);
  if (size <= target / 5 + noise) return;
  known_ = false;
  if (off < 0) careful_ = kCarefulSteps;
}

void GlobalThreshold::save(StateWriter& state) const {
  state.put(value_);
  state.put(known_);
  state.put(refreshed_);
  state.put(correction_);
  state.put(careful_);
  state.put(last_log_threshold_);
  state.put(deviation_);
}

void GlobalThreshold::load(StateReader& state) {
  value_ = state.take_finite<float>("the global threshold", 0);
  known_ = state.take<bool>();
  refreshed_ = state.take<bool>();
  correction_ = state.take<std::int64_t>();
  careful_ = state.take<int>();
  last_log_threshold_ = state.take<std::int64_t>();
  deviation_ = state.take<std::uint64_t>();
}

}  // namespace oktopk
