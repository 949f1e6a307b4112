// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/set_ops.h"

#include "oktopk/sparse/kernels.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {

void intersect(CooView a, std::span<const Index> indices, SparseVector& out) {
  const CooSink to = make_room(out, a.size());
  out.resize(sparse_kernels().intersect(a, indices, to));
}

void make_canonical(SparseVector& v, RunScratch& scratch) {
  if (is_canonical(v)) return;
  auto& [runs, here, there] = scratch;
  runs.clear();
  const CooView all = v;
  for (std::size_t begin = 0, i = 1; i <= v.size(); ++i) {
    if (i < v.size() && v.idx[i - 1] <= v.idx[i]) continue;
    runs.push_back(all.slice(begin, i - begin));
    begin = i;
  }
  CooView sorted = all;
  if (runs.size() > 1) sorted = merge_all(runs, make_room(here, v.size()), make_room(there, v.size()));
  v.resize(combine(sorted, {v.idx.data(), v.val.data()}));
}

}  // namespace oktopk
