// SPDX-License-Identifier: Apache-2.0
// JSON by hand: texts and numbers. The library can be built without any JSON library, and its traces and dumps need
// no more than this.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace oktopk {

inline void append_json_text(std::string& json, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  json += '"';
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') json += '\\';
    code >= 0x20 ? json += c : json += std::string("\\u00") + kHex[code >> 4U] + kHex[code & 15U];
  }
  json += '"';
}

// The fewest digits that give the same number again. JSON has no NaN and no infinity.
inline void append_json_number(std::string& json, double x) {
  constexpr double kExact = 0x1p53;
  if (!std::isfinite(x)) {
    json += "null";
  } else if (std::fabs(x) < kExact && x == std::trunc(x)) {
    json += std::to_string(static_cast<std::int64_t>(x));
  } else {
    std::array<char, 32> text{};
    json.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr);
  }
}

}  // namespace oktopk
