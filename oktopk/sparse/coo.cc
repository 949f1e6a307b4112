// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/coo.h"

#include <algorithm>

namespace oktopk {

bool is_canonical(CooView v) {
  if (v.idx.size() != v.val.size()) return false;
  // To the end, without a way out: compilers turn it into vector instructions.
  unsigned falls = 0;
  for (std::size_t i = 1; i < v.size(); ++i) falls |= static_cast<unsigned>(v.idx[i - 1] >= v.idx[i]);
  return falls == 0;
}

CooView part(CooView v, Range range) {
  const auto first = std::lower_bound(v.idx.begin(), v.idx.end(), range.begin);
  const auto last = std::lower_bound(first, v.idx.end(), range.end);
  return v.slice(static_cast<std::size_t>(first - v.idx.begin()), static_cast<std::size_t>(last - first));
}

}  // namespace oktopk
