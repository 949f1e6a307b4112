// SPDX-License-Identifier: Apache-2.0
// Looks up a row by its name in a table (presets, selectors, residual rules, ...).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"

namespace oktopk {

// The row with this name; otherwise a UsageError that says `what` was asked for and lists all names.
template <class Rows>
const auto& find_row(const Rows& rows, std::string_view what, std::string_view name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.name == name; });
  if (row != rows.end()) return *row;
  std::string known;
  for (const auto& r : rows) known += (known.empty() ? "" : ", ") + std::string(r.name);
  fail<UsageError>("unknown ", what, " '", name, "'; there are: ", known);
}

}  // namespace oktopk
