// SPDX-License-Identifier: Apache-2.0
// How often this thread has allocated with operator new. A test executable that asks for it has its
// operator new replaced (allocations.cc), the library's calls included.
#pragma once

#include <cstddef>

namespace oktopk {

std::size_t allocations_of_this_thread();

}  // namespace oktopk
