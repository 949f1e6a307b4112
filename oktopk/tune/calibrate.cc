// SPDX-License-Identifier: Apache-2.0
// Measures a profile: rounds of messages, then kernels. Every number is reduced over the ranks, so that all ranks hold
// the same bits and decide alike. docs/tuning.md has a table of how each price is measured.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>
#include <vector>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kSmall = 8;
constexpr double kLargest = 1 << 20;                                                 // bytes of a message
constexpr std::array<double, 5> kSizes = {1.0 / 64, 1.0 / 16, 1.0 / 4, 1.0 / 2, 1};  // shares of the largest
constexpr std::array<double, 5> kMessages = {1, 2, 4, 8, 16};
constexpr double kLeastScattered = 1024;           // bytes of one message of that round
constexpr int kNetworkProbes = 2 + 5 + 2 * 5 + 2;  // times of rounds: they share the budget
constexpr std::size_t kPilots = 3;
constexpr double kLeastBatches = 3, kBatches = 9;
// The least that all probes send: rounds of all sizes to both distances, and one of a largest to all others.
constexpr double kLeastSent = (kPilots + kLeastBatches) * (2 * (1.0 / 64 + 1.0 / 16 + 1.0 / 4 + 1.0 / 2 + 1) + 1);
constexpr double kMostRounds = 1000;  // in a batch
constexpr double kLong = 4;           // times its budget: then a probe has one round
// 100 TB/s. Noise can give a slope of zero or less, and a price of zero would make any number of bytes free.
constexpr double kLeastBeta = 1e-14;

void check(const CalibrateOptions& o) {
  require(std::isfinite(o.budget) && o.budget > 0, "calibrate: budget = ", o.budget,
          " seconds, but it must be positive");
  require(o.most_bytes >= kLeastMeasured, "calibrate: most_bytes = ", o.most_bytes, ", but it must be at least ",
          kLeastMeasured);
  require(o.ranks_per_host >= 1, "calibrate: ranks_per_host = ", o.ranks_per_host,
          ", but a host has at least one rank");
  const ExternalPrice external = o.external_dense.value_or(ExternalPrice{});
  require(external.latency >= 0 && external.per_byte >= 0, "calibrate: an external dense of ", external.latency,
          " s and ", external.per_byte, " s per byte, but neither may be negative");
}

// Ranks with different options would wait for each other in vain, or choose different methods: this is found before
// anything is measured.
void agree(Communicator& comm, const CalibrateOptions& o, Workspace& work) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << "budget = " << o.budget
       << ", most_bytes = " << o.most_bytes << ", kernels = " << o.kernels << ", ranks_per_host = " << o.ranks_per_host
       << ", values = " << o.values << ", external_dense = " << o.external_dense.has_value();
  if (!o.kernels) {
    const Machine& m = o.assumed.machine;
    text << ", gamma = " << m.gamma << ", delta = " << m.delta << ", sigma = " << m.sigma;
    for (const double seconds : o.assumed.index_seconds) text << ", index_seconds " << seconds;
    for (const double seconds : o.assumed.value_seconds) text << ", value_seconds " << seconds;
  }
  require_equal(comm, "calibrate", text.str(), work);
}

// ---- The network ----

// Times rounds of messages among the ranks of `part`, all parts of `all` at once.
class Prober {
 public:
  Prober(Communicator& all, Communicator& part, const Clock& now, double budget, double most_bytes)
      : all_(all),
        part_(part),
        now_(now),
        budget_(budget / kNetworkProbes),
        most_bytes_(most_bytes / (2 * kNetworkProbes)),
        largest_(std::min(kLargest, std::floor(most_bytes / (2 * kLeastSent)))) {}

  // `machine` with the prices of this network; those of a free one where no part has two ranks.
  Machine prices(Machine machine) {
    machine.alpha = machine.beta = machine.overhead = 0;
    machine.contention = 1;
    P_ = static_cast<int>(allreduce_small(all_, std::int64_t{part_.size()}, Reduction::max, work_));
    if (P_ < 2) return machine;
    std::vector<double> messages, sizes, times;
    const double small = pair_seconds(kSmall);
    for (const double m : kMessages) messages.push_back(seconds(kSmall, 1, static_cast<std::size_t>(m)));
    for (const double share : kSizes) {
      sizes.push_back(std::floor(share * largest_));
      times.push_back(pair_seconds(sizes.back()));
    }
    machine.beta = std::max(kLeastBeta, median_slope(sizes, times));
    // Noise must not make a price negative, nor a message cheaper than its overhead.
    machine.overhead = std::clamp(median_slope(kMessages, messages) - kSmall * machine.beta, 0.0, small);
    machine.alpha = std::max(0.0, small - machine.overhead - kSmall * machine.beta);
    const bool is_scattered = P_ > 2 && largest_ >= kLeastScattered * (P_ - 1);  // else bytes hardly matter
    if (is_scattered) machine.contention = std::max(1.0, scattered_byte(P_ - 1) / machine.beta);
    return machine;
  }

 private:
  // Seconds of one message: the dearer of the next rank and of the rank P/2 further.
  double pair_seconds(double bytes) {
    const double near = seconds(bytes, 1, 1);
    return P_ < 4 ? near : std::max(near, seconds(bytes, std::max(1, part_.size() / 2), 1));
  }

  // Seconds per byte of a round in which every rank sends to all its peers.
  double scattered_byte(int peers) {
    const double bytes = std::floor(largest_ / peers);
    const auto messages = static_cast<std::size_t>(part_.size()) - 1;
    const double small = seconds(kSmall, 1, messages, true);
    return (seconds(bytes, 1, messages, true) - small) / (peers * (bytes - kSmall));
  }

  // Seconds of one round, equal on all ranks: every rank sends `messages` messages of `bytes` bytes, the first to the
  // rank `distance` further, each other one to the next rank.
  double seconds(double bytes, int distance, std::size_t messages, bool is_scattered = false) {
    prepare(static_cast<std::size_t>(bytes), distance, messages);
    // The fastest pilot: a disturbed one would leave time for a single round.
    double pilot = batches(1, 1).front();
    for (std::size_t i = 1; i < kPilots && pilot <= kLong * budget_; ++i)
      pilot = std::min(pilot, batches(1, 1).front());
    if (pilot > budget_) return pilot;  // on a slow network these rounds tell enough
    // With messages to all others, the largest part's count: all ranks repeat a probe equally often.
    const double most_messages = is_scattered ? P_ - 1 : static_cast<double>(messages);
    const double affordable = most_bytes_ / (bytes * most_messages) - kPilots;
    const double fit = std::min(pilot > 0 ? budget_ / pilot : kBatches * kMostRounds, affordable);
    return median(batches(static_cast<std::size_t>(std::clamp(fit, kLeastBatches, kBatches)),
                          static_cast<int>(std::clamp(fit / kBatches, 1.0, kMostRounds))));
  }

  void prepare(std::size_t bytes, int distance, std::size_t messages) {
    sends_.clear();
    recvs_.clear();
    if (part_.size() < 2) return;  // this rank has no peer: it takes part only in the agreement
    outgoing_.assign(bytes, std::byte{0});
    incoming_.assign(bytes * messages, std::byte{0});  // so that no page fault is timed
    for (std::size_t m = 0; m < messages; ++m) {
      const int hop = (distance - 1 + static_cast<int>(m)) % (part_.size() - 1) + 1;
      sends_.push_back({neighbour(part_, hop), outgoing_});
      recvs_.push_back({neighbour(part_, -hop), std::span(incoming_).subspan(m * bytes, bytes)});
    }
  }

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

  Communicator& all_;
  Communicator& part_;
  const Clock& now_;
  int P_ = 1;          // the most ranks of a part
  double budget_;      // seconds of one probe
  double most_bytes_;  // of the repetitions of one probe
  double largest_;     // bytes of a message
  Bytes outgoing_, incoming_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  Workspace work_;
};

// ---- The processor ----

constexpr int kPeers = 4;
constexpr Index kWidth = Index{1} << 19;
constexpr Index kGap = 100;  // a density of 1%
constexpr float kThreshold = 0.99F;
constexpr double kKernelProbes = 11;    // share the budget
constexpr int kLeast = 3, kMost = 200;  // repetitions

// Seconds of the fastest of as many runs as fit, because other work of the machine only adds time. One more run before
// them warms the buffers.
double seconds_of(const Clock& now, double budget, const std::function<void()>& body) {
  body();
  double least = std::numeric_limits<double>::infinity();
  const double begin = now();
  double last = begin;
  for (int run = 0; run < kLeast || (run < kMost && last - begin < budget); ++run) {
    body();
    const double end = now();
    least = std::min(least, end - last);
    last = end;
  }
  return std::max(0.0, least);
}

// The shares that an owner sums: one of each peer, and its own.
std::vector<SparseVector> make_shares() {
  std::vector<SparseVector> shares(kPeers + 1);
  for (std::size_t p = 0; p < shares.size(); ++p) {
    Random random(7, p);
    for (Index begin = 0; begin + kGap <= kWidth; begin += kGap) {
      const auto value = static_cast<float>(1 + random.uniform());
      shares[p].push_back(begin + static_cast<Index>(random.below(kGap)), random.below(2) == 0 ? value : -value);
    }
  }
  return shares;
}

void measure_entries(const Clock& now, double budget, Profile& profile) {
  const std::vector<SparseVector> shares = make_shares();
  const std::vector<CooView> views(shares.begin(), shares.end());
  const auto size = static_cast<double>(shares[0].size());
  SparseVector arrived, errors, total;
  Bytes bytes;
  const auto code = [&](Codec codec) {  // encodes and decodes the shares of all peers
    const FrameSpec spec{.codec = codec, .range = {0, kWidth}};
    for (const CooView& share : std::span(views).first(kPeers)) {
      bytes.clear();
      errors.clear();
      arrived.clear();
      encode_frame(spec, share, bytes, error_sink(codec, errors));
      decode_frame(open_frame(bytes, spec), arrived);
    }
  };
  const auto coding = [&](Codec codec) { return seconds_of(now, budget, [&] { code(codec); }) / (kPeers * size); };
  const double plain = coding({});
  const auto merge = [&] {
    code({});
    sum(views, {0, kWidth}, total);
  };
  profile.machine.gamma = seconds_of(now, budget, merge) / ((kPeers + 1) * size);
  // A coding that is faster than plain coordinates costs nothing. IndexCoding::all has no indices to code.
  const auto beyond_plain = [&](Codec codec) {
    return codec.index == IndexCoding::all ? 0 : std::max(0.0, coding(codec) - plain);
  };
  for (std::size_t i = 1; i < kIndexCodingCount; ++i)
    profile.index_seconds[i] = beyond_plain({.index = static_cast<IndexCoding>(i)});
  for (std::size_t v = 1; v < kValueCodingCount; ++v)
    profile.value_seconds[v] = beyond_plain({.value = static_cast<ValueCoding>(v)});
}

void measure_passes(const Clock& now, double budget, const CalibrateOptions& options, Machine& machine) {
  machine.delta = machine.sigma = 0;
  if (options.values == 0) return;
  const auto device = make_cpu_device(options.cpu);
  Uninitialised<float> acc(options.values), gradient(options.values, 1.0F);
  Random random(11);
  for (float& x : acc) x = static_cast<float>(2 * random.uniform() - 1);
  // The scale 0 makes every repetition do the same work on the same values.
  const Accumulation pass{.acc = acc, .gradient = gradient, .scale = 0.0F};
  const auto values = static_cast<double>(options.values);
  SparseVector selection;
  machine.delta = seconds_of(now, budget, [&] { device->accumulate(pass); }) / values;
  machine.sigma = seconds_of(now, budget, [&] { device->accumulate_select(pass, kThreshold, selection); }) / values;
}

// Sets the prices of the processor in `profile`: gamma, delta, sigma and the prices of codings, while all ranks compute
// at once. COST: about `budget` seconds, and as long again to fill 2 * options.values floats.
void measure_kernels(Communicator& comm, const Clock& now, double budget, const CalibrateOptions& options,
                     Profile& profile) {
  barrier(comm);
  Machine& machine = profile.machine;
  measure_entries(now, budget / kKernelProbes, profile);
  measure_passes(now, budget / kKernelProbes, options, machine);
  Workspace work;
  const auto take_slowest = [&](std::span<double> prices) { allreduce_small(comm, prices, Reduction::max, work); };
  for (double* price : {&machine.gamma, &machine.delta, &machine.sigma}) take_slowest({price, 1});
  take_slowest(profile.index_seconds);
  take_slowest(profile.value_seconds);
  machine.delta = std::min(machine.delta, machine.sigma);  // a pass that selects also adds, so it is not faster
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

double most_measured(double n, int P) {
  const double dense = P > 1 ? 2 * n * (P - 1) / P * sizeof(float) : 0;
  return std::max(kLeastMeasured, kMeasuredSteps * dense);
}

Profile calibrate(Communicator& comm, const CalibrateOptions& options) {
  const int P = comm.size(), rank = comm.rank();
  const auto steady = [] { return std::chrono::duration<double>(Steady::now().time_since_epoch()).count(); };
  const Clock now = options.now ? options.now : Clock(steady);
  Workspace work;
  agree(comm, options, work);
  check(options);
  const int g = std::min(options.ranks_per_host, P);
  Profile profile{
      .name = "measured: " + std::string(comm.transport()) + ", " + std::to_string(P) + (P == 1 ? " rank" : " ranks"),
      .machine = options.assumed.machine,
      .ranks_per_host = g,
      .index_seconds = options.assumed.index_seconds,
      .value_seconds = options.assumed.value_seconds};
  if (options.external_dense) {
    std::array<double, 2> dearest = {options.external_dense->latency, options.external_dense->per_byte};
    allreduce_small(comm, std::span<double>(dearest), Reduction::max, work);
    profile.external_dense = {.latency = dearest[0], .per_byte = dearest[1]};
  }
  const double budget = options.kernels ? options.budget / 2 : options.budget;
  if (options.kernels) measure_kernels(comm, now, budget, options, profile);
  if (g == 1 || g == P) {
    profile.machine = Prober(comm, comm, now, budget, options.most_bytes).prices(profile.machine);
    return profile;
  }
  const auto among = [&](int color) {
    const auto part = comm.split(color, rank);
    return Prober(comm, *part, now, budget / 3, options.most_bytes / 3).prices(profile.machine);
  };
  profile.machine = among(rank % g);  // between hosts
  profile.inside = among(rank / g);
  profile.leaders = among(rank % g == 0 ? 0 : 1 + rank);
  return profile;
}

}  // namespace oktopk
