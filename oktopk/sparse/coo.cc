// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/coo.h"

#include <algorithm>

namespace oktopk {

bool is_canonical(CooView v) {
  return v.idx.size() == v.val.size() &&
         std::adjacent_find(v.idx.begin(), v.idx.end(), std::greater_equal<>()) == v.idx.end();
}

CooView part(CooView v, Range range) {
  const auto first = std::lower_bound(v.idx.begin(), v.idx.end(), range.begin);
  const auto last = std::lower_bound(first, v.idx.end(), range.end);
  return v.slice(static_cast<std::size_t>(first - v.idx.begin()),
                 static_cast<std::size_t>(last - first));
}

}  // namespace oktopk
