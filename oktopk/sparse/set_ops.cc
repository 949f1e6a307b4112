// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/set_ops.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace oktopk {

void intersect(CooView a, std::span<const Index> indices, SparseVector& out) {
  out.clear();
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    while (j < indices.size() && indices[j] < a.idx[i]) ++j;
    if (j == indices.size()) return;
    if (indices[j] == a.idx[i]) out.push_back(a.idx[i], a.val[i]);
  }
}

void make_canonical(SparseVector& v) {
  if (is_canonical(v)) return;
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&v](std::size_t a, std::size_t b) { return v.idx[a] < v.idx[b]; });
  SparseVector sorted;
  for (const std::size_t i : order) {
    if (!sorted.empty() && sorted.idx.back() == v.idx[i]) {
      sorted.val.back() += v.val[i];
    } else {
      sorted.push_back(v.idx[i], v.val[i]);
    }
  }
  v = std::move(sorted);
}

}  // namespace oktopk
