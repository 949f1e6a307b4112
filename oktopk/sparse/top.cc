// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/top.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>

#include "oktopk/base/error.h"
#include "oktopk/sparse/kernels.h"

namespace oktopk {
namespace {

constexpr std::size_t kBins = 2048;
constexpr std::size_t kFewCandidates = 1024;  // candidates that are sorted out by nth_element

// The k-th largest magnitude, and how many of those equal to it are among the k largest.
struct Kth {
  std::uint32_t bits;
  std::size_t ties_kept;
  std::size_t ties;
};

// Magnitudes low .. high; `count` of them, of which the `rank`-th largest is looked for.
struct Candidates {
  std::uint32_t low;
  std::uint32_t high;
  std::size_t count;
  std::size_t rank;
};

// The bin that has the one looked for.
Candidates narrow(std::span<const float> values, const Candidates& c) {
  // Two histograms in turns: equal neighbours do not wait for each other's count.
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

Kth find_kth(std::span<const float> values, std::size_t k) {
  OKTOPK_DCHECK(k >= 1 && k <= values.size());
  const SparseKernels& kernels = sparse_kernels();
  const auto [low, high] = kernels.extremes(values);
  Candidates c{low, high, values.size(), k};
  while (c.count > kFewCandidates && c.low != c.high) c = narrow(values, c);
  if (c.low == c.high) return {c.low, c.rank, c.count};
  std::array<std::uint32_t, kFewCandidates + kSlack> few;
  const std::size_t found = kernels.collect(values, c.low, c.high - c.low, few.data());
  const auto kth = few.begin() + static_cast<std::ptrdiff_t>(c.rank - 1);
  const auto end = few.begin() + static_cast<std::ptrdiff_t>(found);
  std::nth_element(few.begin(), kth, end, std::greater<>());
  const std::uint32_t bits = *kth;
  // Left of the k-th stands nothing smaller, right of it nothing larger.
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

}  // namespace

float smallest_magnitude(std::span<const float> values) {
  if (values.empty()) return 0;
  return std::bit_cast<float>(sparse_kernels().extremes(values).first);
}

float kth_magnitude(std::span<const float> values, std::size_t k) {
  return std::bit_cast<float>(find_kth(values, k).bits);
}

void keep_largest(SparseVector& v, std::size_t k, SparseVector* dropped) {
  if (v.size() <= k) return;
  const std::size_t before = dropped == nullptr ? 0 : dropped->size();
  const std::size_t after = before + (v.size() - k);
  CooSink gone;
  if (dropped != nullptr) {
    dropped->resize(after + kSlack);
    gone = CooSink{dropped->idx.data(), dropped->val.data()} + before;
  }
  // Of those equal to the k-th the first in order: from some entry on, none.
  const Kth kth = k == 0 ? Kth{kAboveAll, 0, 0} : find_kth(v.val, k);
  const std::size_t end = kth.ties_kept == kth.ties ? v.size() : end_of_ties(v.val, kth.bits, kth.ties_kept);
  const auto filter = sparse_kernels().filter;
  const CooSink to{v.idx.data(), v.val.data()};
  const std::size_t kept = filter(v.view().slice(0, end), kth.bits, to, gone);
  if (dropped != nullptr) gone = gone + (end - kept);
  filter(v.view().slice(end, v.size() - end), kth.bits + 1, to + kept, gone);
  v.resize(k);
  if (dropped != nullptr) dropped->resize(after);
}

void keep_at_least(SparseVector& v, float threshold, SparseVector* dropped) {
  const std::uint32_t least = threshold <= 0 ? 0 : magnitude_bits(threshold);
  const std::size_t before = dropped == nullptr ? 0 : dropped->size();
  const std::size_t total = before + v.size();
  CooSink gone;
  if (dropped != nullptr) {
    dropped->resize(total + kSlack);
    gone = CooSink{dropped->idx.data(), dropped->val.data()} + before;
  }
  const std::size_t kept = sparse_kernels().filter(v, least, {v.idx.data(), v.val.data()}, gone);
  v.resize(kept);
  if (dropped != nullptr) dropped->resize(total - kept);
}

}  // namespace oktopk
