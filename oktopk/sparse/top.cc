// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/top.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// Keeps the entries for which keep(magnitude) holds, in order.
template <class Keep>
void filter(SparseVector& v, SparseVector* dropped, Keep keep) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (keep(std::fabs(v.val[i]))) {
      v.idx[kept] = v.idx[i];
      v.val[kept] = v.val[i];
      ++kept;
    } else if (dropped != nullptr) {
      dropped->push_back(v.idx[i], v.val[i]);
    }
  }
  v.resize(kept);
}

}  // namespace

float kth_magnitude(std::span<const float> values, std::size_t k) {
  OKTOPK_DCHECK(k >= 1 && k <= values.size());
  Uninitialised<float> magnitude(values.size());
  std::transform(values.begin(), values.end(), magnitude.begin(),
                 [](float x) { return std::fabs(x); });
  const auto kth = magnitude.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(magnitude.begin(), kth, magnitude.end(), std::greater<>());
  return *kth;
}

void keep_largest(SparseVector& v, std::size_t k, SparseVector* dropped) {
  if (v.size() <= k) return;
  if (k == 0) {
    filter(v, dropped, [](float) { return false; });
    return;
  }
  const float kth = kth_magnitude(v.val, k);
  const auto above =
      std::count_if(v.val.begin(), v.val.end(), [kth](float x) { return std::fabs(x) > kth; });
  std::size_t ties =
      k - static_cast<std::size_t>(above);  // of those equal to kth, the first in order
  filter(v, dropped, [kth, &ties](float magnitude) {
    if (magnitude != kth) return magnitude > kth;
    if (ties == 0) return false;
    --ties;
    return true;
  });
}

void keep_at_least(SparseVector& v, float threshold) {
  filter(v, nullptr, [threshold](float magnitude) { return magnitude >= threshold; });
}

}  // namespace oktopk
