// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/supports.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/base/random.h"

namespace oktopk {
namespace {

constexpr std::array<SupportInfo, 3> kSupports = {{
    {Support::iid, "iid", "independent and uniform"},
    {Support::correlated, "correlated", "overlapping as of m^0.7 independent ranks, same signs"},
    {Support::layered, "layered", "eight layers whose densities differ by up to 30 times"},
}};

constexpr std::size_t kLayers = 8;
constexpr std::uint64_t kCommon = 7;   // what ranks and steps share: one number per stratum
constexpr std::uint64_t kTurn = 16;    // steps for which ranks agree on a sign
constexpr double kLayerContrast = 30;  // of the densest layer to the sparsest

// A run of indices with the same density of entries.
struct Segment {
  std::uint64_t begin;
  std::uint64_t width;
  std::uint64_t count;
};

// Eight layers, k entries over them by weights from 1 to kLayerContrast, in an order common to all ranks and steps. A
// layer that would overflow passes entries on.
std::vector<Segment> make_layers(const SupportSpec& spec) {
  std::array<double, kLayers> weights{};
  for (std::size_t l = 0; l < kLayers; ++l)
    weights[l] = std::pow(kLayerContrast, static_cast<double>(l) / (kLayers - 1));
  Random order(spec.seed, 8);
  for (std::size_t l = kLayers - 1; l > 0; --l) std::swap(weights[l], weights[order.below(l + 1)]);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Segment> layers;
  double weight = 0;
  std::uint64_t given = 0;
  for (std::uint64_t l = 0; l < kLayers; ++l) {
    const std::uint64_t begin = l * spec.n / kLayers;
    const std::uint64_t end = (l + 1) * spec.n / kLayers;
    weight += weights[l];
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(spec.k) * weight / total);
    const std::uint64_t after = spec.n - end;  // room for entries in later layers
    const std::uint64_t least = std::max(given, spec.k > after ? spec.k - after : 0);
    const std::uint64_t upto = std::clamp(wanted, least, std::min<std::uint64_t>(spec.k, given + end - begin));
    layers.push_back({begin, end - begin, upto - given});
    given = upto;
  }
  return layers;
}

// Uniform over [0, width) from the upper half of `bits`.
std::uint64_t uniform_place(std::uint64_t bits, std::uint64_t width) { return ((bits >> 32) * width) >> 32; }

// Places 0, 1, 2, ... with probabilities like (place + kOffset)^-1.375. With these two numbers m draws hit about as
// many places as m^0.7 uniform ones, for m up to 1024 and n/k from 20 to 1000.
constexpr double kOffset = 0.2;
constexpr double kSteepness = 0.375;

class PowerLaw {
 public:
  explicit PowerLaw(std::uint64_t width)
      : width_(width),
        stride_(kPrime % width),
        first_(static_cast<float>(std::pow(kOffset, -kSteepness))),
        span_(static_cast<float>(first_ - std::pow(static_cast<double>(width) + kOffset, -kSteepness))) {}

  // The places of a stratum are permuted, each stratum's in its own way.
  std::uint64_t place(std::uint64_t bits, std::uint64_t stratum) const {
    return (drawn(bits) * stride_ + uniform_place(stratum, width_)) % width_;
  }

 private:
  static constexpr std::uint64_t kPrime = 4294967291U;  // the last below 2^32: no width divides it

  std::uint64_t drawn(std::uint64_t bits) const {
    const float u = static_cast<float>(bits >> 40) * 0x1p-24F;
    constexpr auto kPower = static_cast<float>(-1 / kSteepness);
    const float x = std::pow(first_ - u * span_, kPower) - static_cast<float>(kOffset);
    return std::min(static_cast<std::uint64_t>(std::max(x, 0.0F)), width_ - 1);
  }

  std::uint64_t width_;
  std::uint64_t stride_;
  float first_;
  float span_;
};

// The distance by which a random walk passes a threshold, in standard deviations of one step.
constexpr double kOvershoot = 0.58;

// 1 plus an exponential number with this mean, from the lower 31 of `bits`.
float magnitude(float overshoot, std::uint64_t bits) {
  const float u = (static_cast<float>(bits & 0x7fffffffU) + 0.5F) * 0x1p-31F;
  return 1 + overshoot * std::max(0.0F, -std::log(u));
}

// The sign of all correlated entries at this place in this step. It stays for kTurn steps; each place has its own
// phase.
bool is_negative(std::uint64_t stratum, std::uint64_t place, std::uint64_t step) {
  const std::uint64_t index = (stratum ^ place) * 0x9e3779b97f4a7c15U;
  const std::uint64_t turn = (step + (index >> 60)) / kTurn;
  const std::uint64_t mixed = index ^ turn * 0x94d049bb133111ebU;
  return (((mixed ^ mixed >> 32) * 0xbf58476d1ce4e5b9U) >> 63) != 0;
}

void check(const SupportSpec& spec) {
  require(spec.P >= 1, "supports: P = ", spec.P, ", must be at least 1");
  require(spec.k >= 1 && spec.k <= spec.n, "supports: k = ", spec.k, ", must be in 1..n with n = ", spec.n);
}

}  // namespace

std::span<const SupportInfo> supports() { return kSupports; }

Support find_support(std::string_view name) { return find_row(kSupports, "support", name).kind; }

void make_selection(const SupportSpec& spec, int rank, std::uint64_t step, SparseVector& out) {
  check(spec);
  require(rank >= 0 && rank < spec.P, "supports: rank ", rank, " in a world of size ", spec.P);
  const bool correlated = spec.kind == Support::correlated;
  const std::vector<Segment> segments =
      spec.kind == Support::layered ? make_layers(spec) : std::vector<Segment>{{0, spec.n, spec.k}};
  const auto overshoot =
      static_cast<float>(kOvershoot * std::sqrt(static_cast<double>(spec.k) / static_cast<double>(spec.n)));
  Random mine(spec.seed, static_cast<std::uint64_t>(rank) + 1000, step);
  Random common(spec.seed, kCommon);
  const PowerLaw narrow(spec.n / spec.k);
  const PowerLaw wide(spec.n / spec.k + 1);
  out.resize(spec.k);
  std::size_t at = 0;
  for (const Segment& segment : segments) {
    std::uint64_t begin = 0;
    for (std::uint64_t s = 1; s <= segment.count; ++s, ++at) {
      const std::uint64_t end = s * segment.width / segment.count;
      const std::uint64_t bits = mine.next();
      std::uint64_t place = uniform_place(bits, end - begin);
      bool negative = (bits >> 31 & 1U) != 0;
      if (correlated) {
        const std::uint64_t stratum = common.next();
        place = (end - begin == spec.n / spec.k ? narrow : wide).place(bits, stratum);
        negative = is_negative(stratum, place, step);
      }
      const float value = magnitude(overshoot, bits);
      out.idx[at] = static_cast<Index>(segment.begin + begin + place);
      out.val[at] = negative ? -value : value;
      begin = end;
    }
  }
}

Cuts voted_cuts(const SupportSpec& spec) {
  check(spec);
  std::vector<std::uint64_t> votes(static_cast<std::size_t>(spec.P) - 1), sums(votes.size());
  SparseVector selection;
  for (int rank = 0; rank < spec.P; ++rank) {
    make_selection(spec, rank, 0, selection);
    vote_cuts(selection, spec.n, spec.P, votes);
    std::transform(sums.begin(), sums.end(), votes.begin(), sums.begin(), std::plus<>());
  }
  return cuts_from_votes(sums, spec.n, spec.P);
}

std::size_t union_size(const SupportSpec& spec) {
  std::vector<bool> is_selected(spec.n);
  SparseVector selection;
  for (int rank = 0; rank < spec.P; ++rank) {
    make_selection(spec, rank, 0, selection);
    for (const Index i : selection.idx) is_selected[i] = true;
  }
  return static_cast<std::size_t>(std::count(is_selected.begin(), is_selected.end(), true));
}

}  // namespace oktopk
