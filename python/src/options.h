// SPDX-License-Identifier: Apache-2.0
// ReducerOptions from Python keywords.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "oktopk/optim/reducer.h"

namespace oktopk::python {

// UsageError names a keyword that does not exist, and lists those that do.
ReducerOptions read_options(const nanobind::dict& keywords);
ValueCoding find_value_coding(const std::string& name);
Index checked_n(std::uint64_t n);

}  // namespace oktopk::python
