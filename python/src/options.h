// SPDX-License-Identifier: Apache-2.0
// ReducerOptions and group_size from Python keywords.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "oktopk/reduce/reducer.h"

namespace oktopk::python {

// UsageError names a keyword that does not exist, and lists those that do.
ReducerOptions read_options(const nanobind::dict& keywords);
// Ranks per node of a NodeReducer, 0: those of a host; nullopt: a Reducer. The constructors read it, not
// read_options().
std::optional<int> read_group_size(const nanobind::dict& keywords);
// All keywords that read_options() knows.
std::vector<std::string> option_names();
// The options in words, for any n: k is compared with n when a Reducer is made.
std::string check_options(const nanobind::dict& keywords);
Index checked_n(std::uint64_t n);

}  // namespace oktopk::python
