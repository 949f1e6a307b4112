// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/supports.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/base/random.h"
#include "oktopk/sparse/top.h"

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
  Index begin;
  std::uint64_t width;
  std::uint64_t count;
};

// `count` entries over the layers by weight, where the first layers that overflow pass on the rest.
void share_out(std::uint64_t count, std::span<const double> weights, std::span<Segment> layers) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  std::uint64_t given = 0;
  std::uint64_t excess = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    before += weights[l];
    const auto upto =
        l + 1 == layers.size() ? count : static_cast<std::uint64_t>(static_cast<double>(count) * before / total);
    layers[l].count = std::min(upto - given, layers[l].width);
    excess += upto - given - layers[l].count;
    given = upto;
  }
  for (Segment& layer : layers) {
    const std::uint64_t more = std::min(excess, layer.width - layer.count);
    layer.count += more;
    excess -= more;
  }
}

// Dense and sparse layers in an order common to all ranks and steps.
std::vector<Segment> make_layers(const SupportSpec& spec) {
  std::vector<Segment> layers;
  for (std::uint64_t l = 0; l < kLayers; ++l) {
    const std::uint64_t begin = l * spec.n / kLayers;
    const std::uint64_t end = (l + 1) * spec.n / kLayers;
    layers.push_back({static_cast<Index>(begin), end - begin, 0});
  }
  std::array<double, kLayers> weights{};
  for (std::size_t l = 0; l < kLayers; ++l)
    weights[l] = std::pow(kLayerContrast, static_cast<double>(l) / (kLayers - 1));
  Random order(spec.seed, 8);
  for (std::size_t l = kLayers - 1; l > 0; --l) std::swap(weights[l], weights[order.below(l + 1)]);
  share_out(spec.k, weights, layers);
  return layers;
}

// Uniform over [0, width) from the upper half of `bits`.
std::uint64_t uniform_place(std::uint64_t bits, std::uint64_t width) { return ((bits >> 32) * width) >> 32; }

// Places 0, 1, 2, ... with probabilities like (place + kOffset)^-1.375: the two numbers for which
// m draws hit about as many places as m^0.7 uniform ones, for m up to 1024 and n/k from 20 to 1000.
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
    const std::uint64_t apart = drawn(bits) * stride_;
    // Most strata are narrow, and a short division takes a fraction of a long one's time.
    const std::uint64_t spread =
        width_ <= 0xffff ? static_cast<std::uint32_t>(apart) % static_cast<std::uint32_t>(width_) : apart % width_;
    const std::uint64_t turned = spread + uniform_place(stratum, width_);
    return turned < width_ ? turned : turned - width_;
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

// The ends of a segment's strata, s * width / count for s = 1, 2, ..., without a division each.
class Strata {
 public:
  explicit Strata(const Segment& segment)
      : count_(segment.count),
        narrow_(segment.count == 0 ? 0 : segment.width / segment.count),
        rest_(segment.count == 0 ? 0 : segment.width % segment.count) {}

  std::uint64_t next_width() {
    over_ += rest_;
    if (over_ < count_) return narrow_;
    over_ -= count_;
    return narrow_ + 1;
  }

 private:
  std::uint64_t count_;
  std::uint64_t narrow_;
  std::uint64_t rest_;
  std::uint64_t over_ = 0;
};

// By which a random walk passes a threshold, in standard deviations of one step.
constexpr double kOvershoot = 0.58;

// Above 1, exponential with this mean, from the lower half of `bits`; 31 of them.
float magnitude(float overshoot, std::uint64_t bits) {
  const float u = (static_cast<float>(bits & 0x7fffffffU) + 0.5F) * 0x1p-31F;
  return 1 + overshoot * std::max(0.0F, -std::log(u));
}

// The sign of all entries at this place of the stratum in this step, when correlated: for 16 steps
// the same, each place with its own beginning, then another or not.
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

std::string_view to_string(Support kind) { return kSupports[static_cast<std::size_t>(kind)].name; }

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
    std::uint64_t begin = segment.begin;
    Strata strata(segment);
    for (std::uint64_t s = 0; s < segment.count; ++s, ++at) {
      const std::uint64_t width = strata.next_width();
      const std::uint64_t bits = mine.next();
      std::uint64_t place = 0;
      bool negative = (bits >> 31 & 1U) != 0;
      if (correlated) {
        const std::uint64_t stratum = common.next();
        place = (width == spec.n / spec.k ? narrow : wide).place(bits, stratum);
        negative = is_negative(stratum, place, step);
      } else {
        place = uniform_place(bits, width);
      }
      out.idx[at] = static_cast<Index>(begin + place);
      const float value = magnitude(overshoot, bits);
      out.val[at] = negative ? -value : value;
      begin += width;
    }
  }
}

Cuts voted_cuts(const SupportSpec& spec, std::uint64_t step) {
  check(spec);
  const auto borders = static_cast<std::size_t>(spec.P) - 1;
  std::vector<std::uint64_t> votes(borders);
  std::vector<std::uint64_t> sum(borders, 0);
  SparseVector selection;
  for (int rank = 0; rank < spec.P; ++rank) {
    make_selection(spec, rank, step, selection);
    vote_cuts(selection, spec.n, spec.P, votes);
    for (std::size_t i = 0; i < borders; ++i) sum[i] += votes[i];
  }
  return cuts_from_votes(sum, spec.n, spec.P);
}

Survey survey(const SupportSpec& spec, std::uint64_t step, const Cuts& cuts) {
  check(spec);
  require(cuts.size() >= 2 && cuts.front() == 0 && cuts.back() == spec.n && std::is_sorted(cuts.begin(), cuts.end()),
          "survey: the cuts must rise from 0 to n = ", spec.n);
  Uninitialised<float> sums(spec.n, 0.0F);
  SparseVector selection;
  for (int rank = 0; rank < spec.P; ++rank) {
    make_selection(spec, rank, step, selection);
    for (std::size_t i = 0; i < selection.size(); ++i) sums[selection.idx[i]] += selection.val[i];
  }
  Survey found;
  for (int r = 0; r + 1 < static_cast<int>(cuts.size()); ++r) {
    const Range range = region(cuts, r);
    const auto inside = std::span(sums).subspan(range.begin, range.width());
    const auto zeros = static_cast<std::size_t>(std::count(inside.begin(), inside.end(), 0.0F));
    found.region_unions.push_back(range.width() - zeros);
    found.union_size += found.region_unions.back();
  }
  found.kth_magnitude = kth_magnitude(sums, spec.k);
  return found;
}

}  // namespace oktopk
