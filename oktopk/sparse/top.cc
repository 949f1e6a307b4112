// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/top.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>

#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

constexpr std::size_t kBins = 2048;
constexpr std::size_t kFewCandidates = 1024;  // as many are left to nth_element

// The k-th largest magnitude, how many values have it, and how many of these are among the k largest.
struct Kth {
  std::uint32_t bits;
  std::size_t ties_kept;
  std::size_t ties;
};

// The `count` magnitudes in low .. high; the `rank`-th largest of them is the k-th of all.
struct Candidates {
  std::uint32_t low;
  std::uint32_t high;
  std::size_t count;
  std::size_t rank;
};

// The candidates in the bin that holds the k-th magnitude.
Candidates narrow(std::span<const float> values, const Candidates& c) {
  // Two histograms take turns, so that equal neighbours do not wait for each other's count.
  std::array<std::array<std::uint32_t, kBins + 1>, 2> bins{};
  const auto shift = static_cast<unsigned>(std::max(0, static_cast<int>(std::bit_width(c.high - c.low)) - 11));
  const auto bin_of = [&](float x) {  // the last bin: not among the candidates
    return std::min<std::uint32_t>((magnitude_bits(x) - c.low) >> shift, kBins);
  };
  std::size_t i = 0;
  for (; i + 2 <= values.size(); i += 2) {
    ++bins[0][bin_of(values[i])];
    ++bins[1][bin_of(values[i + 1])];
  }
  if (i < values.size()) ++bins[0][bin_of(values[i])];
  std::uint32_t bin = (c.high - c.low) >> shift;
  std::size_t rank = c.rank;
  const auto count_in = [&](std::uint32_t b) { return std::size_t{bins[0][b]} + bins[1][b]; };
  for (; count_in(bin) < rank; --bin) rank -= count_in(bin);
  const std::uint32_t low = c.low + (bin << shift);
  return {low, std::min(c.high, low + ((1U << shift) - 1)), count_in(bin), rank};
}

Candidates candidates(std::span<const float> values, std::size_t k) {
  const Extremes all = kernels().codings.extremes(values.data(), values.size(), 0);
  return {static_cast<std::uint32_t>(all.least), static_cast<std::uint32_t>(all.most), values.size(), k};
}

Kth find_kth(std::span<const float> values, std::size_t k) {
  OKTOPK_DCHECK(k >= 1 && k <= values.size());
  Candidates c = candidates(values, k);
  while (c.count > kFewCandidates && c.low != c.high) c = narrow(values, c);
  if (c.low == c.high) return {c.low, c.rank, c.count};
  std::array<std::uint32_t, kFewCandidates + kSlack> few;
  const std::size_t found = kernels().entries.collect(values, c.low, c.high - c.low, few.data());
  const auto kth = few.begin() + static_cast<std::ptrdiff_t>(c.rank - 1);
  const auto end = few.begin() + static_cast<std::ptrdiff_t>(found);
  std::nth_element(few.begin(), kth, end, std::greater<>());
  const std::uint32_t bits = *kth;
  // Nothing smaller stands left of the k-th, nothing larger right of it.
  const auto kept = std::count(few.begin(), kth + 1, bits);
  const auto beyond = std::count(kth + 1, end, bits);
  return {bits, static_cast<std::size_t>(kept), static_cast<std::size_t>(kept + beyond)};
}

// Where the first `count` values of that magnitude end.
std::size_t end_of_ties(std::span<const float> values, std::uint32_t bits, std::size_t count) {
  std::size_t i = 0;
  for (; count != 0; ++i) count -= magnitude_bits(values[i]) == bits;
  return i;
}

// Appends to the vector of dropped entries, or to none.
class Dropped {
 public:
  Dropped(SparseVector* out, std::size_t most) : out_(out), before_(out == nullptr ? 0 : out->size()) {
    if (out_ != nullptr) out_->resize(before_ + most + kSlack);
  }
  CooSink sink(std::size_t at) const { return out_ == nullptr ? CooSink{} : sink_of(*out_) + (before_ + at); }
  void finish(std::size_t count) {
    if (out_ != nullptr) out_->resize(before_ + count);
  }

 private:
  SparseVector* out_;
  std::size_t before_;
};

}  // namespace

std::size_t first_nonfinite(std::span<const float> values) {
  return kernels().elements.first_nonfinite[static_cast<std::size_t>(FloatType::fp32)](values.data(), values.size());
}

float smallest_magnitude(std::span<const float> values) {
  if (values.empty()) return 0;
  return std::bit_cast<float>(kernels().codings.extremes(values.data(), values.size(), 0).least);
}

float kth_magnitude(std::span<const float> values, std::size_t k) {
  return std::bit_cast<float>(find_kth(values, k).bits);
}

void keep_largest(SparseVector& v, std::size_t k, SparseVector* dropped) {
  if (v.size() <= k) return;
  Dropped gone(dropped, v.size() - k);
  // Among entries equal to the k-th magnitude, keeps the lowest indices: all of them lie before `end`.
  const Kth kth = k == 0 ? Kth{kAboveAll, 0, 0} : find_kth(v.val, k);
  const std::size_t end = kth.ties_kept == kth.ties ? v.size() : end_of_ties(v.val, kth.bits, kth.ties_kept);
  const auto filter = kernels().entries.filter;
  const CooSource all = source_of(v);
  const std::size_t kept = filter({all.idx, all.val, end}, kth.bits, sink_of(v), gone.sink(0));
  filter(all.from(end), kth.bits + 1, sink_of(v) + kept, gone.sink(end - kept));
  gone.finish(v.size() - k);
  v.resize(k);
}

void keep_at_least(SparseVector& v, float threshold, SparseVector* dropped) {
  const std::uint32_t least = threshold <= 0 ? 0 : magnitude_bits(threshold);
  Dropped gone(dropped, v.size());
  const std::size_t kept = kernels().entries.filter(source_of(v), least, sink_of(v), gone.sink(0));
  gone.finish(v.size() - kept);
  v.resize(kept);
}

}  // namespace oktopk
