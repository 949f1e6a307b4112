// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/kth_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace oktopk {
namespace {

constexpr std::size_t kDigits = 256;
constexpr std::array<unsigned, 4> kShifts = {23, 15, 7, 0};  // of 31 bits: 8, 8, 8 and 7
constexpr std::array<unsigned, 4> kWidths = {8, 8, 8, 7};

std::uint32_t digit_of(std::uint32_t bits, std::size_t round) {
  return (bits >> kShifts[round]) & ((1U << kWidths[round]) - 1);
}

}  // namespace

KthSum KthSumFinder::find(Communicator& comm, std::span<const float> values, std::uint64_t k,
                          Workspace& work) {
  candidates_.clear();
  for (const float x : values) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
    if (bits != 0) candidates_.push_back(bits);
  }
  KthSum kth;
  std::uint32_t prefix = 0;
  for (std::size_t round = 0; round < kShifts.size(); ++round) {
    std::array<std::uint32_t, kDigits> counts{};
    for (const std::uint32_t bits : candidates_) ++counts[digit_of(bits, round)];
    allreduce_small(comm, std::span<std::uint32_t>(counts), Reduction::sum, work);
    if (round == 0) {
      kth.total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      if (kth.total == 0) return kth;
      k = std::min(k, kth.total);
    }
    // All ranks have the same counts, and so choose the same digit.
    std::size_t digit = kDigits - 1;
    while (kth.larger + counts[digit] < k) kth.larger += counts[digit--];
    prefix |= static_cast<std::uint32_t>(digit) << kShifts[round];
    std::erase_if(candidates_, [&](std::uint32_t bits) { return digit_of(bits, round) != digit; });
  }
  kth.magnitude = std::bit_cast<float>(prefix);
  return kth;
}

Cost KthSumFinder::cost(int P) {
  const double L = ceil_log2(P);
  return sequential(4 * L, 4 * L * (sizeof(std::uint32_t) * kDigits + kCheckBytes));
}

}  // namespace oktopk
