// SPDX-License-Identifier: Apache-2.0
// Growable memory whose resize() does not touch the new elements: receive buffers are posted with a
// capacity, and pages that no message fills are never committed.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace oktopk {

template <class T>
struct UninitialisedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UninitialisedAllocator<U>;
  };
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Args>
  void construct(U* place, Args&&... args) {
    ::new (static_cast<void*>(place)) U(std::forward<Args>(args)...);
  }
};

// A vector of trivial T; elements added by resize(size) are uninitialised.
template <class T>
using Uninitialised = std::vector<T, UninitialisedAllocator<T>>;

using Bytes = Uninitialised<std::byte>;

}  // namespace oktopk
