// SPDX-License-Identifier: Apache-2.0
#include "tools/laws/oracle.h"

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

void add(Dense& a, const Dense& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

// x restricted to [begin, end).
Dense clip(const Dense& x, std::size_t begin, std::size_t end) {
  Dense out(x.size(), 0.0);
  std::copy(x.begin() + static_cast<std::ptrdiff_t>(begin),
            x.begin() + static_cast<std::ptrdiff_t>(end), out.begin() + static_cast<std::ptrdiff_t>(begin));
  return out;
}

}  // namespace

Dense oracle_sum(std::span<const Dense> ranks) {
  Dense sum = ranks[0];
  for (const Dense& x : ranks.subspan(1)) add(sum, x);
  return sum;
}

Dense oracle_top(const Dense& x, std::size_t k) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::fabs(x[a]) > std::fabs(x[b]);
  });
  order.resize(std::min(k, order.size()));
  Dense out(x.size(), 0.0);
  for (const std::size_t i : order) out[i] = x[i];
  return out;
}

Dense oracle_at_least(const Dense& x, double threshold) {
  Dense out = x;
  for (double& v : out)
    if (std::fabs(v) < threshold) v = 0;
  return out;
}

double oracle_kth(const Dense& x, std::size_t k) {
  double smallest = 0;
  for (const double v : oracle_top(x, k))
    if (v != 0 && (smallest == 0 || std::fabs(v) < smallest)) smallest = std::fabs(v);
  return smallest;
}

Dense oracle_gtopk(std::span<const Dense> selections, std::size_t k) {
  std::vector<Dense> kept;
  for (const Dense& s : selections) kept.push_back(oracle_top(s, k));
  for (std::size_t stride = 1; stride < kept.size(); stride *= 2)
    for (std::size_t r = 0; r + stride < kept.size(); r += 2 * stride) {
      add(kept[r], kept[r + stride]);
      kept[r] = oracle_top(kept[r], k);
    }
  return kept[0];
}

Dense oracle_spardl(std::span<const Dense> selections, std::size_t k) {
  const std::size_t P = selections.size();
  const std::size_t n = selections[0].size();
  const std::size_t quota = (k + P - 1) / P;
  // held[i][d]: what rank i has for region i + d.
  std::vector<std::vector<Dense>> held(P);
  for (std::size_t i = 0; i < P; ++i)
    for (std::size_t d = 0; d < P; ++d) {
      const std::size_t r = (i + d) % P;
      held[i].push_back(clip(selections[i], r * n / P, (r + 1) * n / P));
    }
  std::size_t bag = 1;
  while (bag * 2 < P) bag *= 2;
  for (std::size_t S = P; S > 1; S = bag, bag /= 2) {
    for (auto& blocks : held)
      for (std::size_t d = bag; d < S; ++d) blocks[d] = oracle_top(blocks[d], quota);
    for (std::size_t i = 0; i < P; ++i)
      for (std::size_t d = bag; d < S; ++d) add(held[(i + bag) % P][d - bag], held[i][d]);
  }
  Dense out(n, 0.0);
  for (std::size_t i = 0; i < P; ++i) add(out, oracle_top(held[i][0], quota));
  return out;
}

}  // namespace oktopk
