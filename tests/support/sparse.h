// SPDX-License-Identifier: Apache-2.0
// Sparse vectors for tests: written out by hand, random, and as lists that gtest compares and
// prints.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

using Entry = std::pair<Index, float>;
using EntryList = std::vector<Entry>;

inline SparseVector make_sparse(std::initializer_list<Entry> entries) {
  SparseVector out;
  for (const auto& [i, v] : entries) out.push_back(i, v);
  return out;
}

inline EntryList list_of(CooView v) {
  EntryList out;
  for (std::size_t i = 0; i < v.size(); ++i) out.emplace_back(v.idx[i], v.val[i]);
  return out;
}

// `count` distinct indices of [begin, end) with values that are multiples of 2^-10 and not zero:
// sums of thousands of them are exact in any order.
inline SparseVector random_sparse(Random& random, std::size_t count, Index begin, Index end) {
  std::set<Index> indices;
  while (indices.size() < count) indices.insert(begin + static_cast<Index>(random.below(end - begin)));
  SparseVector out;
  for (const Index i : indices) {
    const auto magnitude = static_cast<float>(1 + random.below(500)) * 0x1p-10F;
    out.push_back(i, random.below(2) == 0 ? magnitude : -magnitude);
  }
  return out;
}

}  // namespace oktopk
