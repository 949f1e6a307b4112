// SPDX-License-Identifier: Apache-2.0
// Kernels over the k selected entries: the owner's sum, the trim of a selection, the dense view.
#include "oktopk/reduce/synchroniser.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"
#include "tools/kernels/kernel_bench.h"

namespace oktopk {
namespace {

constexpr double kEntryBytes = sizeof(Index) + sizeof(float);

}  // namespace

// What an owner does in a step: P parts of about k/P entries within n/P indices. Each part is
// another region of the selection, moved to where the first one is.
void KernelBench::reduce(int P, std::vector<Reach> reach) {
  const std::string name = "reduce P=" + std::to_string(P);
  const auto width = static_cast<Index>(data_.n / static_cast<Index>(P));
  if (!wants(name) || width == 0) return;
  std::vector<SparseVector> parts(static_cast<std::size_t>(P));
  double entries = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const auto begin = static_cast<Index>(p * width);
    parts[p].append(part(selection_, {begin, begin + width}));
    for (Index& i : parts[p].idx) i -= begin;
    entries += static_cast<double>(parts[p].size());
  }
  const std::vector<CooView> views(parts.begin(), parts.end());
  SparseVector out;
  time_beside_copy({.kernel = name, .bytes = kEntryBytes * entries, .entries = entries, .reach = std::move(reach)},
                   [&] {
                     sum(views, {0, width}, out);
                   });
}

void KernelBench::trim() {
  const std::string name = "trim 1.1k to k";
  if (!wants(name)) return;
  const std::size_t more = std::min<std::size_t>(data_.n, k_ + (k_ + 9) / 10);
  SparseVector all, v;
  Uninitialised<float> acc = data_.x;
  select_exact(*device_, {.acc = acc}, more, all);
  time_beside_copy(
      {.kernel = name,
       .bytes = kEntryBytes * static_cast<double>(all.size()),
       .entries = static_cast<double>(all.size())},
      [&] { keep_largest(v, k_); },
      [&] {
        v.clear();
        v.append(all);
      });
}

void KernelBench::dense_mean() {
  const std::string name = "dense mean";
  if (!wants(name)) return;
  DenseMean mean(data_.n);
  bool odd = false;
  const auto entries = static_cast<double>(selection_.size() + next_.size()) / 2;
  time_beside_copy({.kernel = name, .bytes = kEntryBytes * entries, .entries = entries}, [&] {
    odd = !odd;
    sink_ += mean.show({.sparse = odd ? selection_ : next_})[0];
  });
}

}  // namespace oktopk
