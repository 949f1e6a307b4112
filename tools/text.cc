// SPDX-License-Identifier: Apache-2.0
#include "tools/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "oktopk/base/error.h"

namespace oktopk {

std::uint64_t parse_count(std::string_view text, std::string_view what) {
  constexpr std::string_view kSuffixes = "KMG";
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::size_t shift = 0;
  bool is_good = error == std::errc();
  if (is_good && rest != end) {
    const std::size_t suffix = kSuffixes.find(static_cast<char>(*rest & ~0x20));
    is_good = suffix != std::string_view::npos && rest + 1 == end;
    shift = is_good ? 10 * (suffix + 1) : 0;
  }
  require(is_good && value <= (UINT64_MAX >> shift), what, ": '", text, "' is not a count: digits, then K, M or G");
  return value << shift;
}

std::string format_fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

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
    const std::uint64_t number = parse_count(name, what);
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

std::string Column::cell(const nlohmann::json& row) const {
  if (key.empty()) return format(row);
  if (!row.contains(key)) return {};
  const nlohmann::json& value = row[key];
  if (format) return format(value);
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:g}", value.get<double>()) : value.dump();
}

Column::Format fixed(int decimals, double scale) {
  return [=](double value) { return format_fixed(scale * value, decimals); };
}

Column::Format words_per_k(const std::string& key) {
  return [=](const nlohmann::json& row) {
    return row.contains(key) ? format_fixed(row[key].get<double>() / 4 / row["k"].get<double>(), 3) : "";
  };
}

void TextTable::print_line(char first, const std::function<std::string(const Column&)>& cell) const {
  std::string line(1, first);
  for (const Column& column : columns_)
    line += column.width < 0 ? fmt::format(" {:<{}}", cell(column), -column.width)
                             : fmt::format(" {:>{}}", cell(column), column.width);
  line.resize(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void TextTable::print_head() const {
  print_line('#', [](const Column& column) { return column.head; });
  if (std::ranges::any_of(columns_, [](const Column& column) { return !column.unit.empty(); }))
    print_line('#', [](const Column& column) { return column.unit; });
}

void TextTable::print(const nlohmann::json& row) const {
  print_line(' ', [&](const Column& column) { return column.cell(row); });
}

void check_writable(const std::string& file) {
  require(file.empty() || std::ofstream(file, std::ios::app).good(), "cannot write ", file);
}

void write_json(const std::string& file, const nlohmann::json& value) {
  if (file.empty()) return;
  std::ofstream out(file);
  out << value.dump(2) << '\n';
  require(out.good(), "cannot write ", file);
}

StatusLine::StatusLine(bool is_shown)
    : is_shown_(is_shown && isatty(fileno(stdout)) == 1 && isatty(fileno(stderr)) == 1) {}

void StatusLine::show(const std::string& text) {
  if (!is_shown_) return;
  fmt::print(stderr, "\r\x1b[2K{}", text);
  std::fflush(stderr);
  is_dirty_ = true;
}

void StatusLine::clear() {
  if (!is_dirty_) return;
  std::fflush(stdout);
  fmt::print(stderr, "\r\x1b[2K");
  std::fflush(stderr);
  is_dirty_ = false;
}

}  // namespace oktopk
