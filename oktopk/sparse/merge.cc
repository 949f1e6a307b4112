// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/merge.h"

#include <algorithm>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

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

}  // namespace

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

}  // namespace oktopk
