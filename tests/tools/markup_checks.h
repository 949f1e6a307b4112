// SPDX-License-Identifier: Apache-2.0
// The checks that tests of pages and plots make on markup: every tag is closed by its own kind, no
// attribute or text is left open; and a count of occurrences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace oktopk {

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Whether the inside of a tag is a name, then name="value" any number of times, perhaps a slash.
// By hand: std::regex recurses for every character, too deep for the path of a long line.
inline bool is_tag(std::string_view inside) {
  const auto skip_name = [&] {
    const std::size_t end = inside.find_first_not_of("abcdefghijklmnopqrstuvwxyzB-0123456789");
    const std::size_t length = std::min(end, inside.size());
    inside.remove_prefix(length);
    return length > 0;
  };
  if (inside.starts_with('/')) inside.remove_prefix(1);
  if (!skip_name()) return false;
  while (inside.starts_with(' ')) {
    inside.remove_prefix(1);
    if (!skip_name() || !inside.starts_with("=\"")) return false;
    const std::size_t end = inside.find('"', 2);
    if (end == std::string_view::npos || inside.substr(0, end).find('<') < end) return false;
    inside.remove_prefix(end + 1);
  }
  return inside.empty() || inside == "/";
}

// Empty, or what is wrong. Void elements have to be written <meta .../>, as this project does.
inline std::string markup_error(std::string_view text) {
  std::vector<std::string> open;
  std::size_t at = 0;
  if (text.starts_with("<!DOCTYPE html>")) at = text.find('>') + 1;
  for (at = text.find('<', at); at != std::string_view::npos; at = text.find('<', at)) {
    const std::size_t end = text.find('>', at);
    if (end == std::string_view::npos) return "an open tag";
    const std::string inside(text.substr(at + 1, end - at - 1));
    at = end + 1;
    if (!is_tag(inside)) return "not a tag: <" + inside.substr(0, 80) + ">";
    if (inside.back() == '/') continue;
    const std::string name = inside.substr(inside[0] == '/', inside.find(' ') - (inside[0] == '/'));
    if (inside[0] != '/') {
      open.push_back(name);
    } else {
      if (open.empty() || open.back() != name) return "closes what is not open: " + inside;
      open.pop_back();
    }
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

// Checks that hold for every plot.
inline void expect_sound(const std::string& svg) {
  EXPECT_EQ(markup_error(svg), "") << svg.substr(0, 2000);
  EXPECT_TRUE(svg.starts_with("<figure"));
  for (const char* number : {"nan", "inf"})
    for (const char* before : {"\"", " ", "M", "L", "-"})
      EXPECT_EQ(count(svg, std::string(before) + number), 0u) << number;
}

// The numbers of all attributes of one name, in order.
inline std::vector<double> attributes(const std::string& svg, const std::string& name) {
  std::vector<double> values;
  const std::regex attribute(" " + name + R"re(="(-?[0-9.]+)")re");
  for (std::sregex_iterator it(svg.begin(), svg.end(), attribute), end; it != end; ++it)
    values.push_back(std::stod((*it)[1]));
  return values;
}

}  // namespace oktopk
