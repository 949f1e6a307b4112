// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/parts/kth_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace oktopk {
namespace {

// The 31 bits of a magnitude as five digits: half as many would take ten times the bytes.
constexpr std::array<unsigned, 5> kShifts = {24, 18, 12, 6, 0};
constexpr std::array<unsigned, 5> kWidths = {7, 6, 6, 6, 6};
constexpr std::size_t kMostValues = 128;  // of a digit

std::size_t values_of(std::size_t round) { return std::size_t{1} << kWidths[round]; }

std::uint32_t digit_of(std::uint32_t bits, std::size_t round) {
  return (bits >> kShifts[round]) & ((1U << kWidths[round]) - 1);
}

}  // namespace

KthSum KthSumFinder::find(Communicator& comm, std::span<const float> values, std::uint64_t k, Workspace& work) {
  candidates_.clear();
  for (const float x : values) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
    if (bits != 0) candidates_.push_back(bits);
  }
  KthSum kth;
  std::uint32_t prefix = 0;
  for (std::size_t round = 0; round < kShifts.size(); ++round) {
    std::array<std::uint32_t, kMostValues> counts{};
    for (const std::uint32_t bits : candidates_) ++counts[digit_of(bits, round)];
    allreduce_small(comm, std::span<std::uint32_t>(counts).first(values_of(round)), Reduction::sum, work);
    if (round == 0) {
      kth.total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      if (kth.total == 0) return kth;
      k = std::min(k, kth.total);
    }
    // All ranks have the same counts, and so choose the same digit.
    std::size_t digit = values_of(round) - 1;
    while (kth.larger + counts[digit] < k) kth.larger += counts[digit--];
    prefix |= static_cast<std::uint32_t>(digit) << kShifts[round];
    std::erase_if(candidates_, [&](std::uint32_t bits) { return digit_of(bits, round) != digit; });
  }
  kth.magnitude = std::bit_cast<float>(prefix);
  return kth;
}

Cost KthSumFinder::cost(int P) {
  const double L = ceil_log2(P);
  double bytes = 0;
  for (std::size_t round = 0; round < kShifts.size(); ++round)
    bytes += static_cast<double>(sizeof(std::uint32_t) * values_of(round) + kCheckBytes);
  return sequential(static_cast<double>(kShifts.size()) * L, L * bytes);
}

}  // namespace oktopk
