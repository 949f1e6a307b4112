// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/dense_mean.h"

#include <algorithm>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

// write(place, j) for values[idx[j]], with the cache lines asked for ahead.
template <class Write>
void for_each_place(std::span<float> values, std::span<const Index> idx, const Write& write) {
  constexpr std::size_t kAhead = 24;
  for (std::size_t j = 0; j < idx.size(); ++j) {
    __builtin_prefetch(values.data() + idx[std::min(j + kAhead, idx.size() - 1)], 1);
    write(values[idx[j]], j);
  }
}

}  // namespace

std::span<const float> DenseMean::show(const Update& update) {
  require(!update.is_dense() || update.dense.size() == values_.size(), "dense mean: an update of ",
          update.dense.size(), " values, but n = ", values_.size());
  require(update.sparse.empty() || update.sparse.idx.back() < values_.size(),
          "dense mean: an update of index ", update.sparse.empty() ? 0 : update.sparse.idx.back(),
          ", but n = ", values_.size());
  if (update.is_dense()) {
    std::copy(update.dense.begin(), update.dense.end(), values_.begin());
    all_written_ = true;
    return values_;
  }
  if (all_written_) {
    std::fill(values_.begin(), values_.end(), 0.0F);
  } else {
    for_each_place(values_, written_, [](float& x, std::size_t) { x = 0.0F; });
  }
  all_written_ = false;
  written_.assign(update.sparse.idx.begin(), update.sparse.idx.end());
  const float* const val = update.sparse.val.data();
  for_each_place(values_, written_, [val](float& x, std::size_t j) { x = val[j]; });
  return values_;
}

}  // namespace oktopk
