// SPDX-License-Identifier: Apache-2.0
// Nothing of this folder that runs in every step asks for memory once its outputs have grown. This
// executable counts what goes through operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "oktopk/base/simd.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"
#include "tests/support/sparse.h"

namespace {

std::atomic<std::size_t> allocations = 0;

void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* const memory = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return count_and_allocate(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return count_and_allocate(bytes, 16); }
// Not inline: GCC would take free() at the end of a `new` expression for a mistake.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace oktopk::allocations_test {
namespace {

// How often `work` allocates when it has run before.
template <class Work>
std::size_t allocations_of(Work work) {
  work();
  const std::size_t before = allocations;
  work();
  return allocations - before;
}

TEST(Allocations, are_counted) {
  EXPECT_GT(allocations_of([] { SparseVector().resize(10); }), 0u);
}

TEST(Allocations, of_a_second_sum_are_none) {
  Random random(1);
  for (const SimdLevel level : simd_levels())
    for (const std::size_t count : {1U, 2U, 3U, 100U})
      for (const Index width : {1000U, 5000000U}) {
        const SimdLimit limit(level);
        std::vector<SparseVector> parts;
        for (std::size_t p = 0; p < count; ++p) parts.push_back(random_sparse(random, 400, 0, width));
        const std::vector<CooView> views(parts.begin(), parts.end());
        SparseVector out;
        EXPECT_EQ(allocations_of([&] { sum(views, {0, width}, out); }), 0u) << count;
      }
}

TEST(Allocations, of_a_second_selection_or_intersection_are_none) {
  Random random(2);
  const SparseVector v = random_sparse(random, 5000, 0, 100000);
  for (const SimdLevel level : simd_levels()) {
    const SimdLimit limit(level);
    SparseVector mine;
    SparseVector dropped;
    EXPECT_EQ(allocations_of([&] {
                mine = v;
                dropped.clear();
                keep_largest(mine, 4000, &dropped);
                keep_at_least(mine, kth_magnitude(mine.val, 2000));
              }),
              0u);
    SparseVector out;
    EXPECT_EQ(allocations_of([&] { intersect(v, mine.idx, out); }), 0u);
  }
}

}  // namespace
}  // namespace oktopk::allocations_test
