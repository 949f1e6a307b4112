// SPDX-License-Identifier: Apache-2.0
// The words of override rules, shared by who reads and who writes them (overrides.h).
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace oktopk {

inline constexpr std::array<std::string_view, 4> kVariables = {"n", "k", "density", "P"};
inline constexpr std::array<std::string_view, 5> kRelations = {"<", "<=", ">", ">=", "="};  // Kind's order
inline constexpr std::array<std::pair<char, double>, 3> kSuffixes = {{{'G', 0x1p30}, {'M', 0x1p20}, {'K', 0x1p10}}};

}  // namespace oktopk
