// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/network_prices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

constexpr std::size_t kSmall = 8;
constexpr std::array<double, 5> kSizes = {1 << 14, 1 << 16, 1 << 18, 1 << 19, 1 << 20};
constexpr std::array<double, 5> kMessages = {1, 2, 4, 8, 16};
constexpr double kScattered = 1 << 20;             // bytes of a round with everyone
constexpr double kLeastScattered = 1024;           // of one of its messages
constexpr int kNetworkProbes = 2 + 5 + 2 * 5 + 2;  // that share the budget
constexpr std::size_t kPilots = 3;
constexpr double kLeastBatches = 3, kBatches = 9;
constexpr double kMostRounds = 1000;  // of a batch
// 100 TB/s: no wire is faster, but noise can give a slope of zero or less, and a price of zero
// would call any number of bytes free.
constexpr double kLeastBeta = 1e-14;

// Every rank sends `messages` messages of `bytes` each, the first to the rank `distance` further,
// each of the others one further than the one before.
struct Round {
  std::size_t messages = 1;
  int distance = 1;
  std::size_t bytes = kSmall;
};

class Prober {
 public:
  Prober(Communicator& all, Communicator& part, const Clock& now, double budget)
      : all_(all), part_(part), now_(now), budget_(budget / kNetworkProbes) {}

  // Seconds of such a round, equal on all ranks.
  double seconds(const Round& round) {
    prepare(round);
    // The least: a pilot that was disturbed must not leave the rest with a single round.
    const std::vector<double> pilots = batches(kPilots, 1);
    const double pilot = *std::min_element(pilots.begin(), pilots.end());
    const double fit = pilot > 0 ? budget_ / pilot : kBatches * kMostRounds;
    return median(batches(static_cast<std::size_t>(std::clamp(fit, kLeastBatches, kBatches)),
                          static_cast<int>(std::clamp(fit / kBatches, 1.0, kMostRounds))));
  }

  // Of one message of so many bytes: the dearer of a neighbour and of the farthest rank.
  double pair_seconds(std::size_t bytes) {
    const double near = seconds({.bytes = bytes});
    const double far = seconds({.distance = std::max(1, part_.size() / 2), .bytes = bytes});
    return std::max(near, far);
  }

  int largest_part() {
    return static_cast<int>(allreduce_small(all_, std::int64_t{part_.size()}, Reduction::max, work_));
  }
  std::size_t peers() const { return static_cast<std::size_t>(part_.size()) - 1; }

 private:
  // Seconds of a round in each of so many batches, on the slowest rank.
  std::vector<double> batches(std::size_t count, int repetitions) {
    std::vector<double> times(count);
    for (double& time : times) {
      barrier(all_);
      time = rounds(repetitions);
    }
    allreduce_small(all_, std::span<double>(times), Reduction::max, work_);
    return times;
  }

  void prepare(const Round& round) {
    sends_.clear();
    recvs_.clear();
    if (part_.size() < 2) return;  // this rank has nobody: it only takes part in what is agreed
    outgoing_.resize(round.bytes);
    incoming_.resize(round.bytes * round.messages);
    std::fill(outgoing_.begin(), outgoing_.end(), std::byte{0});
    std::fill(incoming_.begin(), incoming_.end(), std::byte{0});  // no page fault is timed
    for (std::size_t m = 0; m < round.messages; ++m) {
      const std::size_t first = static_cast<std::size_t>(round.distance) - 1;
      const int distance = static_cast<int>((first + m) % peers()) + 1;
      sends_.push_back({neighbour(part_, distance), outgoing_});
      recvs_.push_back({neighbour(part_, -distance), std::span(incoming_).subspan(m * round.bytes, round.bytes)});
    }
  }

  // Seconds of one of so many rounds.
  double rounds(int repetitions) {
    const double begin = now_();
    if (!sends_.empty())
      for (int i = 0; i < repetitions; ++i) part_.exchange(sends_, recvs_);
    return (now_() - begin) / repetitions;
  }

  Communicator& all_;
  Communicator& part_;
  const Clock& now_;
  double budget_;  // of one probe
  Bytes outgoing_, incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  Workspace work_;
};

// At least 1: everyone with everyone is no faster than pairs, which may do the same.
double measure_contention(Prober& prober, int P, double beta) {
  if (P < 3) return 1;
  const double bytes = std::max(kLeastScattered, std::floor(kScattered / (P - 1)));
  const double small = prober.seconds({.messages = prober.peers(), .bytes = kSmall});
  const double large = prober.seconds({.messages = prober.peers(), .bytes = static_cast<std::size_t>(bytes)});
  const double per_byte = (large - small) / ((P - 1) * (bytes - kSmall));
  return std::max(1.0, per_byte / beta);
}

}  // namespace

Machine measure_network(Communicator& all, Communicator& part, const Clock& now, double budget) {
  Prober prober(all, part, now, budget);
  const int P = prober.largest_part();
  if (P < 2) return {};
  std::vector<double> sizes, messages;
  const double small = prober.pair_seconds(kSmall);
  for (const double m : kMessages) messages.push_back(prober.seconds({.messages = static_cast<std::size_t>(m)}));
  for (const double b : kSizes) sizes.push_back(prober.pair_seconds(static_cast<std::size_t>(b)));
  Machine machine;
  machine.beta = std::max(kLeastBeta, median_slope(kSizes, sizes));
  // Neither can be negative, nor can a message take less than its own overhead: noise can say so.
  machine.overhead = std::clamp(median_slope(kMessages, messages) - kSmall * machine.beta, 0.0, small);
  machine.alpha = std::max(0.0, small - machine.overhead - kSmall * machine.beta);
  machine.contention = measure_contention(prober, P, machine.beta);
  return machine;
}

}  // namespace oktopk
