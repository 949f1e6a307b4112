// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

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

}  // namespace

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

}  // namespace oktopk
