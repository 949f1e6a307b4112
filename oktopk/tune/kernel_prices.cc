// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/kernel_prices.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {
namespace {

constexpr std::size_t kPeers = 4;
constexpr Index kWidth = Index{1} << 19;
constexpr Index kGap = 100;  // a density of 1%
constexpr float kThreshold = 0.99F;
constexpr double kKernelProbes = 11;    // that share the budget
constexpr int kLeast = 3, kMost = 200;  // repetitions

// The least of as many runs as fit: what else goes on in the machine only adds to a run's time. One
// more run before them warms the buffers.
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

// What an owner receives: one share per peer, and its own.
class Shares {
 public:
  Shares() : shares_(kPeers + 1), arrived_(kPeers) {
    for (std::size_t p = 0; p < shares_.size(); ++p) fill(shares_[p], p);
  }

  double arriving() const { return static_cast<double>(kPeers * shares_[0].size()); }
  double summed() const { return static_cast<double>((kPeers + 1) * shares_[0].size()); }

  // All peers' shares there and back.
  void code(Codec codec) {
    const FrameSpec spec{.codec = codec, .range = {0, kWidth}};
    for (std::size_t p = 0; p < kPeers; ++p) {
      bytes_.clear();
      errors_.clear();
      encode_frame(spec, shares_[p], bytes_, error_sink(codec, errors_));
      arrived_[p].clear();
      decode_frame(open_frame(bytes_, spec), arrived_[p]);
    }
  }

  void add_up() {
    views_.assign(1, shares_[kPeers]);
    views_.insert(views_.end(), arrived_.begin(), arrived_.end());
    sum(views_, {0, kWidth}, sum_);
  }

 private:
  static void fill(SparseVector& share, std::size_t p) {
    Random random(7, p);
    for (Index begin = 0; begin + kGap <= kWidth; begin += kGap) {
      const auto value = static_cast<float>(1 + random.uniform());
      share.push_back(begin + static_cast<Index>(random.below(kGap)), random.below(2) == 0 ? value : -value);
    }
  }

  std::vector<SparseVector> shares_, arrived_;
  std::vector<CooView> views_;
  SparseVector errors_, sum_;
  Bytes bytes_;
};

void measure_entries(const Clock& now, double budget, KernelPrices& prices) {
  Shares shares;
  const auto coding = [&](Codec codec) {
    return seconds_of(now, budget, [&] { shares.code(codec); }) / shares.arriving();
  };
  const double plain = coding({});
  prices.gamma = seconds_of(now, budget,
                            [&] {
                              shares.code({});
                              shares.add_up();
                            }) /
                 shares.summed();
  // A coding that is faster than plain coordinates is not paid for: it costs nothing.
  for (std::size_t i = 1; i < prices.index.size(); ++i) {
    const auto index = static_cast<IndexCoding>(i);
    if (index != IndexCoding::all) prices.index[i] = std::max(0.0, coding({index, ValueCoding::fp32}) - plain);
  }
  for (std::size_t v = 1; v < prices.value.size(); ++v)
    prices.value[v] = std::max(0.0, coding({IndexCoding::coo32, static_cast<ValueCoding>(v)}) - plain);
}

void measure_passes(const Clock& now, const KernelOptions& options, KernelPrices& prices) {
  if (options.values == 0) return;
  const auto device = make_cpu_device(options.cpu);
  Uninitialised<float> acc(options.values), gradient(options.values, 1.0F);
  Random random(11);
  for (float& x : acc) x = static_cast<float>(2 * random.uniform() - 1);
  // Times 0: the same work, and every repetition finds what the first one found.
  const Accumulation pass{.acc = acc, .gradient = gradient, .scale = 0.0F};
  const auto values = static_cast<double>(options.values);
  const double budget = options.budget / kKernelProbes;
  SparseVector selection;
  prices.delta = seconds_of(now, budget, [&] { device->accumulate(pass); }) / values;
  prices.sigma = seconds_of(now, budget, [&] { device->accumulate_select(pass, kThreshold, selection); }) / values;
}

}  // namespace

KernelPrices measure_kernels(Communicator& comm, const Clock& now, const KernelOptions& options) {
  KernelPrices prices;
  barrier(comm);
  measure_entries(now, options.budget / kKernelProbes, prices);
  measure_passes(now, options, prices);
  std::vector<double> all = {prices.gamma, prices.delta, prices.sigma};
  all.insert(all.end(), prices.index.begin(), prices.index.end());
  all.insert(all.end(), prices.value.begin(), prices.value.end());
  Workspace work;
  allreduce_small(comm, std::span<double>(all), Reduction::max, work);
  prices.gamma = all[0];
  prices.sigma = all[2];
  prices.delta = std::min(all[1], prices.sigma);  // a pass that selects also adds: not faster
  const auto index = all.begin() + 3;
  std::copy_n(index, prices.index.size(), prices.index.begin());
  std::copy_n(index + static_cast<std::ptrdiff_t>(prices.index.size()), prices.value.size(), prices.value.begin());
  return prices;
}

}  // namespace oktopk
