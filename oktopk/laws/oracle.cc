// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/oracle.h"

#include <algorithm>
#include <cmath>

namespace oktopk {

void oracle_add(Entries& a, const Entries& b) {
  for (const auto& [i, v] : b) {
    const double sum = static_cast<float>(a[i] + v);
    sum != 0 ? void(a[i] = sum) : void(a.erase(i));
  }
}

Entries oracle_sum(std::span<const Entries> ranks) {
  Entries sum;
  for (const Entries& x : ranks) oracle_add(sum, x);
  return sum;
}

Entries oracle_top(const Entries& x, std::size_t k) {
  std::vector<std::pair<Index, double>> order(x.begin(), x.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return std::fabs(a.second) > std::fabs(b.second); });
  order.resize(std::min(k, order.size()));
  return {order.begin(), order.end()};
}

Entries oracle_at_least(const Entries& x, double threshold) {
  Entries out = x;
  std::erase_if(out, [&](const auto& entry) { return std::fabs(entry.second) < threshold; });
  return out;
}

double oracle_kth(const Entries& x, std::size_t k) {
  double smallest = 0;
  for (const auto& [i, v] : oracle_top(x, k))
    smallest = smallest == 0 ? std::fabs(v) : std::min(smallest, std::fabs(v));
  return smallest;
}

Entries oracle_gtopk(std::span<const Entries> selections, std::size_t k) {
  std::vector<Entries> kept;
  for (const Entries& s : selections) kept.push_back(oracle_top(s, k));
  for (std::size_t stride = 1; stride < kept.size(); stride *= 2)
    for (std::size_t r = 0; r + stride < kept.size(); r += 2 * stride) {
      oracle_add(kept[r], kept[r + stride]);
      kept[r] = oracle_top(kept[r], k);
    }
  return kept[0];
}

Entries oracle_spardl(std::span<const Entries> selections, Index n, std::size_t k) {
  const std::size_t P = selections.size();
  const std::size_t quota = (k + P - 1) / P;
  const auto cut = [&](std::size_t r) { return static_cast<Index>(std::uint64_t{n} * r / P); };
  // held[i][d]: what rank i has for region i + d.
  std::vector<std::vector<Entries>> held(P);
  for (std::size_t i = 0; i < P; ++i)
    for (std::size_t d = 0; d < P; ++d) {
      const std::size_t r = (i + d) % P;
      held[i].emplace_back(selections[i].lower_bound(cut(r)), selections[i].lower_bound(cut(r + 1)));
    }
  std::size_t bag = 1;
  while (bag * 2 < P) bag *= 2;
  for (std::size_t S = P; S > 1; S = bag, bag /= 2) {
    for (auto& blocks : held)
      for (std::size_t d = bag; d < S; ++d) blocks[d] = oracle_top(blocks[d], quota);
    for (std::size_t i = 0; i < P; ++i)
      for (std::size_t d = bag; d < S; ++d) oracle_add(held[(i + bag) % P][d - bag], held[i][d]);
  }
  Entries out;
  for (std::size_t i = 0; i < P; ++i) oracle_add(out, oracle_top(held[i][0], quota));
  return out;
}

}  // namespace oktopk
