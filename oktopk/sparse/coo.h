// SPDX-License-Identifier: Apache-2.0
// The sparse vector in coordinate form that flows through every stage: indices and values in two parallel arrays, in
// host memory. Canonical: indices strictly increasing. Every function of this library returns canonical vectors unless
// it says otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"

namespace oktopk {

using Index = std::uint32_t;  // n < 2^32 per reduction; larger gradients are sharded by the caller

// Indices begin <= i < end.
struct Range {
  Index begin = 0;
  Index end = 0;
  std::size_t width() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// A borrowed sparse vector.
struct CooView {
  std::span<const Index> idx;
  std::span<const float> val;

  std::size_t size() const { return idx.size(); }
  bool empty() const { return idx.empty(); }
  CooView slice(std::size_t first, std::size_t count) const {
    return {idx.subspan(first, count), val.subspan(first, count)};
  }
};

// An owned sparse vector; reused between steps, so clear() keeps the memory.
struct SparseVector {
  Uninitialised<Index> idx;
  Uninitialised<float> val;

  std::size_t size() const { return idx.size(); }
  bool empty() const { return idx.empty(); }
  void clear() { resize(0); }
  // Grows with some room to spare: sizes that creep up from step to step rarely allocate.
  void resize(std::size_t count) {
    if (count > idx.capacity() || count > val.capacity()) {
      idx.reserve(count + count / 4);
      val.reserve(count + count / 4);
    }
    idx.resize(count);
    val.resize(count);
  }
  void push_back(Index i, float v) {
    idx.push_back(i);
    val.push_back(v);
  }
  void append(CooView other) {
    const std::size_t before = size();
    resize(before + other.size());
    std::copy(other.idx.begin(), other.idx.end(), idx.data() + before);
    std::copy(other.val.begin(), other.val.end(), val.data() + before);
  }
  CooView view() const { return {idx, val}; }
  operator CooView() const { return view(); }
};

// Whether idx[0] < idx[1] < ...
bool increases(std::span<const Index> idx);

inline bool is_canonical(CooView v) { return v.idx.size() == v.val.size() && increases(v.idx); }

// The part of canonical `v` whose indices lie in `range`. COST: O(log size).
inline CooView part(CooView v, Range range) {
  const auto first = std::lower_bound(v.idx.begin(), v.idx.end(), range.begin);
  const auto last = std::lower_bound(first, v.idx.end(), range.end);
  return v.slice(static_cast<std::size_t>(first - v.idx.begin()), static_cast<std::size_t>(last - first));
}

}  // namespace oktopk
