// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/bytes.h"

#include <sys/mman.h>

#include <new>

namespace oktopk {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLarge = 2 * kHugePage;  // in smaller blocks most of a huge page might be wasted

std::align_val_t alignment_of(std::size_t bytes) { return std::align_val_t{bytes >= kLarge ? kHugePage : kLine}; }

}  // namespace

void* allocate_pages(std::size_t bytes) {
  void* memory = ::operator new(bytes, alignment_of(bytes));
  // Whole pages only: the rest of the last page may belong to other memory. It is advice: a refusal costs only speed.
  if (bytes >= kLarge) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void free_pages(void* memory, std::size_t bytes) noexcept { ::operator delete(memory, alignment_of(bytes)); }

}  // namespace oktopk
