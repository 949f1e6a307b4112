// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/sum.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "oktopk/cpu/kernels.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

// Two vectors need one merge only: blocks pay off later.
constexpr std::size_t kDenseForTwo = 512;

struct Totals {
  std::size_t entries = 0;
  std::size_t occupied = 0;           // parts that are not empty
  std::array<CooView, 2> first = {};  // the first two of these
};

Totals totals_of(std::span<const CooView> parts) {
  Totals totals;
  for (const CooView& part : parts) {
    if (part.empty()) continue;
    if (totals.occupied < totals.first.size()) totals.first[totals.occupied] = part;
    ++totals.occupied;
    totals.entries += part.size();
  }
  return totals;
}

// Adds the entries of `v` from `at` on that lie in the block; returns where it stopped.
std::size_t scatter(CooView v, std::size_t at, Index begin, SumBlock& block) {
  const Index* const idx = v.idx.data();
  const float* const val = v.val.data();
  float* const value = block.value.data();
  std::uint8_t* const touched = block.touched.data();
  const auto add = [=](std::size_t i) {
    const Index offset = idx[i] - begin;
    value[offset] += val[i];
    touched[offset / SumBlock::kGroup] = 1;
  };
  // Only the last block of a part has to look for its end.
  if (idx[v.size() - 1] - begin < SumBlock::kWidth) {
    for (; at < v.size(); ++at) add(at);
  } else {
    for (; idx[at] - begin < SumBlock::kWidth; ++at) add(at);
  }
  return at;
}

// The walk over the occupied blocks of the range.
class BlockSum {
 public:
  // `next`: zeros, one per part.
  BlockSum(std::span<const CooView> parts, Range range, std::span<Index> next)
      : parts_(parts), origin_(range.begin), next_(next) {
    const std::size_t width = std::min<std::size_t>(range.width(), SumBlock::kWidth);
    words_ = (width + SumBlock::kWord - 1) / SumBlock::kWord;
    std::fill_n(block_.value.begin(), words_ * SumBlock::kWord, 0.0F);
    std::fill_n(block_.touched.begin(), words_ * SumBlock::kWordGroups, std::uint8_t{0});
  }

  std::size_t run(CooSink out) {
    std::uint64_t smallest = kNone;
    for (const CooView& part : parts_)
      if (!part.empty()) smallest = std::min<std::uint64_t>(smallest, part.idx[0]);
    const auto drain = kernels().entries.drain;
    std::size_t to = 0;
    while (smallest != kNone) {
      const Index offset = static_cast<Index>(smallest) - origin_;
      const Index begin = origin_ + offset / SumBlock::kWidth * SumBlock::kWidth;
      smallest = add_block(begin);
      to += drain(block_, words_, begin, out + to);
    }
    return to;
  }

 private:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  // Returns the smallest index beyond the block.
  std::uint64_t add_block(Index begin) {
    std::uint64_t smallest = kNone;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const CooView& part = parts_[p];
      if (next_[p] == part.size()) continue;
      const std::size_t at = scatter(part, next_[p], begin, block_);
      next_[p] = static_cast<Index>(at);
      if (at < part.size()) smallest = std::min<std::uint64_t>(smallest, part.idx[at]);
    }
    return smallest;
  }

  std::span<const CooView> parts_;
  Index origin_;
  std::span<Index> next_;
  std::size_t words_;
  SumBlock block_;
};

}  // namespace

void sum(std::span<const CooView> parts, Range range, SparseVector& out) {
  const EntryKernels& use = kernels().entries;
  const Totals totals = totals_of(parts);
  const std::size_t blocks = range.width() / SumBlock::kWidth + 1;
  // A part costs a block about as much as half an entry costs a merge.
  const std::size_t dense = totals.occupied == 2 ? kDenseForTwo : use.dense_block + parts.size() / 2;
  if (totals.occupied <= 1) {
    const CooSink to = make_room(out, totals.entries);
    out.resize(use.filter(source_of(totals.first[0]), 1, to, {}));
  } else if (totals.entries >= dense * blocks) {
    const std::size_t most = std::min(totals.entries, range.width()) + kSlack;
    const CooSink to = make_room(out, most + parts.size());
    const std::span<Index> next{to.idx + most, parts.size()};
    std::fill(next.begin(), next.end(), 0);
    out.resize(BlockSum(parts, range, next).run(to));
  } else if (totals.occupied == 2) {
    const CooSink to = make_room(out, totals.entries);
    merge(totals.first[0], totals.first[1], to);
    out.resize(use.combine_pairs({to.idx, to.val, totals.entries}, to));
  } else {
    const CooSink to = make_room(out, 2 * totals.entries);
    out.resize(combine(source_of(merge_all(parts, to, to + totals.entries)), to));
  }
}

void intersect(CooView a, std::span<const Index> indices, SparseVector& out) {
  const CooSink to = make_room(out, a.size());
  out.resize(kernels().entries.intersect(source_of(a), indices, to));
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
  v.resize(combine(source_of(sorted), sink_of(v)));
}

}  // namespace oktopk
