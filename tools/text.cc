// SPDX-License-Identifier: Apache-2.0
#include "tools/text.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "oktopk/base/error.h"

namespace oktopk {

std::uint64_t parse_count(std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (suffix == "K" || suffix == "k")
    shift = 10;
  else if (suffix == "M" || suffix == "m")
    shift = 20;
  else if (suffix == "G" || suffix == "g")
    shift = 30;
  else
    require(suffix.empty(), "'", text, "' is not a count: digits, then K, M or G");
  require(error == std::errc() && rest != text.data() && value <= (UINT64_MAX >> shift), "'", text,
          "' is not a count: digits, then K, M or G");
  return value << shift;
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

std::string format_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", bytes / 1024);
  return fmt::format("{:.1f} MiB", bytes / (1024 * 1024));
}

std::vector<std::string> split_names(const std::string& text, const std::vector<std::string>& known) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    if (name == "all")
      names.insert(names.end(), known.begin(), known.end());
    else
      names.push_back(name);
  }
  require(!names.empty(), "an empty list of names");
  return names;
}

std::vector<int> parse_ranks(const std::string& text, std::string_view what) {
  std::vector<int> numbers;
  for (const std::string& name : split_names(text, {})) {
    const std::uint64_t number = parse_count(name);
    require(number >= 1 && number <= 4096, what, " = ", name, ", but it must be in 1..4096");
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

std::vector<double> parse_densities(const std::string& text, std::string_view what) {
  std::vector<double> densities;
  for (const std::string& part : split_names(text, {})) {
    std::istringstream stream(part);
    double density = 0;
    const bool is_number = (stream >> density) && stream.eof();
    require(is_number && density > 0 && density <= 1, what, " ", part, ": it must be a number in (0, 1]");
    densities.push_back(density);
  }
  return densities;
}

}  // namespace oktopk
