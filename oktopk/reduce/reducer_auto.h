// SPDX-License-Identifier: Apache-2.0
// Internal to Reducer: what ranks with preset auto must agree on, in words. The choice itself
// follows from it.
#pragma once

#include <string>

#include "oktopk/reduce/reducer.h"

namespace oktopk {

std::string describe_auto(const ReducerOptions& options);

}  // namespace oktopk
