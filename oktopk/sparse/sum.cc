// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/sum.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/sparse/merge.h"

namespace oktopk {
namespace {

// ---- Merges: no branch depends on the data, because supports are random and a wrong guess costs more than three
// entries. The result is built from both ends at once, so that the dependent loads of one end hide those of the other.

// A side with fewer entries than this, or shorter by this factor, is inserted into the other by binary search.
constexpr std::size_t kFewEntries = 8;
constexpr std::size_t kFarLonger = 64;

// Entries [i, i_end) of a and [j, j_end) of b are still to be merged, to [i + j, i_end + j_end).
struct Rest {
  std::size_t i, i_end;
  std::size_t j, j_end;

  std::size_t of_a() const { return i_end - i; }
  std::size_t of_b() const { return j_end - j; }
  bool balanced() const {
    const std::size_t fewer = std::min(of_a(), of_b());
    return fewer >= kFewEntries && std::max(of_a(), of_b()) / fewer < kFarLonger;
  }
};

// Takes as many steps from both ends as are safe without looking for the end of a or b: each pair of steps takes at
// most two entries of either. The places in b and in the result follow from the place in a.
void merge_ends(CooView a, CooView b, CooSink out, Rest& rest) {
  const Index* const a_idx = a.idx.data();
  const Index* const b_idx = b.idx.data();
  const float* const a_val = a.val.data();
  const float* const b_val = b.val.data();
  std::size_t i = rest.i;
  std::size_t to = rest.i + rest.j;
  std::size_t last = rest.i_end - 1;
  std::size_t to_last = rest.i_end + rest.j_end - 1;
  for (std::size_t steps = std::min(rest.of_a(), rest.of_b()) / 2; steps != 0; --steps) {
    const Index x = a_idx[i];
    const Index y = b_idx[to - i];
    const bool from_a = x <= y;
    // A choice between addresses, not values: compilers make it without a branch.
    const float* const from = from_a ? a_val + i : b_val + (to - i);
    out.idx[to] = from_a ? x : y;
    out.val[to] = *from;
    i += from_a;
    ++to;

    const Index last_x = a_idx[last];
    const Index last_y = b_idx[to_last - last - 1];
    const bool last_from_a = last_x > last_y;
    const float* const last_from = last_from_a ? a_val + last : b_val + (to_last - last - 1);
    out.idx[to_last] = last_from_a ? last_x : last_y;
    out.val[to_last] = *last_from;
    last -= last_from_a;
    --to_last;
  }
  rest = {i, last + 1, to - i, to_last - last};
}

CooSink copy(CooView from, CooSink out) {
  std::copy_n(from.idx.data(), from.size(), out.idx);
  std::copy_n(from.val.data(), from.size(), out.val);
  return out + from.size();
}

// Places each entry of `few` among `many`; where indices are equal, `many` goes first if `after` is set.
void insert(CooView few, CooView many, bool after, CooSink out) {
  std::size_t done = 0;
  for (std::size_t i = 0; i < few.size(); ++i) {
    const Index* const from = many.idx.data() + done;
    const Index* const end = many.idx.data() + many.size();
    const Index* const place =
        after ? std::upper_bound(from, end, few.idx[i]) : std::lower_bound(from, end, few.idx[i]);
    const auto count = static_cast<std::size_t>(place - from);
    out = copy(many.slice(done, count), out);
    *out.idx = few.idx[i];
    *out.val = few.val[i];
    out = out + 1;
    done += count;
  }
  copy(many.slice(done, many.size() - done), out);
}

// The number of entries in `runs` runs from `first` on.
std::size_t count_of(std::span<const CooView> parts, std::size_t first, std::size_t runs) {
  std::size_t count = 0;
  for (std::size_t p = first; p < std::min(first + runs, parts.size()); ++p) count += parts[p].size();
  return count;
}

// ---- Sums

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

bool increases(std::span<const Index> idx) { return kernels().codings.increases(idx.data(), idx.size()); }

void merge(CooView a, CooView b, CooSink out) {
  Rest rest{0, a.size(), 0, b.size()};
  while (rest.balanced()) merge_ends(a, b, out, rest);
  const CooView rest_a = a.slice(rest.i, rest.of_a());
  const CooView rest_b = b.slice(rest.j, rest.of_b());
  if (rest_a.size() < rest_b.size()) {
    insert(rest_a, rest_b, false, out + (rest.i + rest.j));
  } else {
    insert(rest_b, rest_a, true, out + (rest.i + rest.j));
  }
}

CooView merge_all(std::span<const CooView> parts, CooSink here, CooSink there) {
  OKTOPK_DCHECK(parts.size() >= 2);
  const std::size_t total = count_of(parts, 0, parts.size());
  for (std::size_t p = 0, to = 0; p < parts.size(); p += 2) {
    merge(parts[p], p + 1 < parts.size() ? parts[p + 1] : CooView{}, here + to);
    to += count_of(parts, p, 2);
  }
  for (std::size_t merged = 2; merged < parts.size(); merged *= 2) {
    const CooView runs{{here.idx, total}, {here.val, total}};
    std::size_t to = 0;
    for (std::size_t p = 0; p < parts.size(); p += 2 * merged) {
      const std::size_t left = count_of(parts, p, merged);
      const std::size_t right = count_of(parts, p + merged, merged);
      merge(runs.slice(to, left), runs.slice(to + left, right), there + to);
      to += left + right;
    }
    std::swap(here, there);
  }
  return {{here.idx, total}, {here.val, total}};
}

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
