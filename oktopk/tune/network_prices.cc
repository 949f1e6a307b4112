// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

constexpr std::size_t kSmall = 8;
constexpr std::array<double, 5> kSizes = {1 << 14, 1 << 16, 1 << 18, 1 << 19, 1 << 20};
constexpr std::array<double, 5> kMessages = {1, 2, 4, 8, 16};
constexpr double kScattered = 1 << 20;             // bytes that a rank sends in a round with all others
constexpr double kLeastScattered = 1024;           // bytes of one message of that round
constexpr int kNetworkProbes = 2 + 5 + 2 * 5 + 2;  // times of rounds: they share the budget
constexpr std::size_t kPilots = 3;
constexpr double kLeastBatches = 3, kBatches = 9;
constexpr double kMostRounds = 1000;  // in a batch
// 100 TB/s. Noise can give a slope of zero or less, and a price of zero would make any number of bytes free.
constexpr double kLeastBeta = 1e-14;

// Every rank sends `messages` messages of `bytes` bytes: the first to the rank `distance` further, each other one to
// the next rank.
struct Round {
  std::size_t messages = 1;
  int distance = 1;
  std::size_t bytes = kSmall;
};

class Prober {
 public:
  Prober(Communicator& all, Communicator& part, const Clock& now, double budget)
      : all_(all), part_(part), now_(now), budget_(budget / kNetworkProbes) {}

  // Seconds of one round, equal on all ranks.
  double seconds(const Round& round) {
    prepare(round);
    // The fastest pilot: a disturbed one would leave time for a single round.
    const std::vector<double> pilots = batches(kPilots, 1);
    const double pilot = *std::min_element(pilots.begin(), pilots.end());
    const double fit = pilot > 0 ? budget_ / pilot : kBatches * kMostRounds;
    return median(batches(static_cast<std::size_t>(std::clamp(fit, kLeastBatches, kBatches)),
                          static_cast<int>(std::clamp(fit / kBatches, 1.0, kMostRounds))));
  }

  // Seconds of one message: the dearer of the next rank and of the rank P/2 further.
  double pair_seconds(std::size_t bytes) {
    const double near = seconds({.bytes = bytes});
    return std::max(near, seconds({.distance = std::max(1, part_.size() / 2), .bytes = bytes}));
  }

  std::size_t peers() const { return static_cast<std::size_t>(part_.size()) - 1; }

 private:
  // Mean seconds of a round in each of `count` batches, on the slowest rank.
  std::vector<double> batches(std::size_t count, int repetitions) {
    std::vector<double> times(count);
    for (double& time : times) {
      barrier(all_);
      const double begin = now_();
      if (!sends_.empty())
        for (int i = 0; i < repetitions; ++i) part_.exchange(sends_, recvs_);
      time = (now_() - begin) / repetitions;
    }
    allreduce_small(all_, std::span<double>(times), Reduction::max, work_);
    return times;
  }

  void prepare(const Round& round) {
    sends_.clear();
    recvs_.clear();
    if (part_.size() < 2) return;  // this rank has no peer: it takes part only in the agreement
    outgoing_.assign(round.bytes, std::byte{0});
    incoming_.assign(round.bytes * round.messages, std::byte{0});  // so that no page fault is timed
    for (std::size_t m = 0; m < round.messages; ++m) {
      const std::size_t first = static_cast<std::size_t>(round.distance) - 1;
      const int distance = static_cast<int>((first + m) % peers()) + 1;
      sends_.push_back({neighbour(part_, distance), outgoing_});
      recvs_.push_back({neighbour(part_, -distance), std::span(incoming_).subspan(m * round.bytes, round.bytes)});
    }
  }

  Communicator& all_;
  Communicator& part_;
  const Clock& now_;
  double budget_;  // seconds of one probe
  Bytes outgoing_, incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  Workspace work_;
};

// At least 1: a round with all others is no faster than rounds in pairs.
double measure_contention(Prober& prober, int P, double beta) {
  if (P < 3) return 1;
  const double bytes = std::max(kLeastScattered, std::floor(kScattered / (P - 1)));
  const double small = prober.seconds({.messages = prober.peers(), .bytes = kSmall});
  const double large = prober.seconds({.messages = prober.peers(), .bytes = static_cast<std::size_t>(bytes)});
  const double per_byte = (large - small) / ((P - 1) * (bytes - kSmall));
  return std::max(1.0, per_byte / beta);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median_slope(std::span<const double> x, std::span<const double> y) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) slopes.push_back((y[i] - y[j]) / (x[i] - x[j]));
  return median(std::move(slopes));
}

Machine measure_network(Communicator& all, Communicator& part, const Clock& now, double budget, Machine machine) {
  Prober prober(all, part, now, budget);
  Workspace work;
  const auto P = static_cast<int>(allreduce_small(all, std::int64_t{part.size()}, Reduction::max, work));
  machine.alpha = machine.beta = machine.overhead = 0;
  machine.contention = 1;
  if (P < 2) return machine;
  std::vector<double> sizes, messages;
  const double small = prober.pair_seconds(kSmall);
  for (const double m : kMessages) messages.push_back(prober.seconds({.messages = static_cast<std::size_t>(m)}));
  for (const double b : kSizes) sizes.push_back(prober.pair_seconds(static_cast<std::size_t>(b)));
  machine.beta = std::max(kLeastBeta, median_slope(kSizes, sizes));
  // Noise must not make a price negative, nor a message cheaper than its overhead.
  machine.overhead = std::clamp(median_slope(kMessages, messages) - kSmall * machine.beta, 0.0, small);
  machine.alpha = std::max(0.0, small - machine.overhead - kSmall * machine.beta);
  machine.contention = measure_contention(prober, P, machine.beta);
  return machine;
}

}  // namespace oktopk
