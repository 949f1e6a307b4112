// SPDX-License-Identifier: Apache-2.0
// Looks up a row by its name in a table (presets, selectors, residual rules, ...), and the names of enumerators.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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

// The names of an enum's values 0, 1, ..., in this order.
template <class Enum, std::size_t count>
class EnumNames {
 public:
  template <class... Names>
  requires(sizeof...(Names) == count) constexpr explicit EnumNames(std::string_view what, Names... names)
      : what_(what), rows_{Row{names}...} {}

  constexpr std::string_view operator[](Enum value) const { return rows_[static_cast<std::size_t>(value)].name; }
  // UsageError lists the names that exist.
  Enum find(std::string_view name) const { return static_cast<Enum>(&find_row(rows_, what_, name) - rows_.data()); }

 private:
  struct Row {
    std::string_view name;
  };
  std::string_view what_;
  std::array<Row, count> rows_;
};

}  // namespace oktopk
