// SPDX-License-Identifier: Apache-2.0
// Growable memory whose resize() does not touch the new elements: receive buffers are posted with a capacity, and
// pages that no message fills are never committed. Large blocks lie in huge pages where the system allows it:
// streaming over ordinary pages costs up to half of the bandwidth.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace oktopk {

// Uninitialised memory, aligned to a cache line or, from a few MiB on, to huge pages.
void* allocate_pages(std::size_t bytes);
void free_pages(void* memory, std::size_t bytes) noexcept;

template <class T>
struct UninitialisedAllocator {
  using value_type = T;
  UninitialisedAllocator() = default;
  template <class U>
  UninitialisedAllocator(const UninitialisedAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_pages(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { free_pages(memory, count * sizeof(T)); }

  // Without arguments; std::allocator_traits has the other constructions.
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  friend bool operator==(const UninitialisedAllocator&, const UninitialisedAllocator&) { return true; }
};

// A vector of trivial T; elements added by resize(size) are uninitialised.
template <class T>
using Uninitialised = std::vector<T, UninitialisedAllocator<T>>;

using Bytes = Uninitialised<std::byte>;

}  // namespace oktopk
