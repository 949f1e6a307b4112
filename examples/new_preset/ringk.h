// SPDX-License-Identifier: Apache-2.0
// The factory of the tutorial's preset. One of the library's own would stand in oktopk/allreduce/allreduce.h.
#pragma once

#include <memory>

#include "oktopk/allreduce/allreduce.h"

namespace oktopk {

std::unique_ptr<Allreduce> make_ringk(const AllreduceOptions& options);

}  // namespace oktopk
