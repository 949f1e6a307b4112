// SPDX-License-Identifier: Apache-2.0
// Numbers, lists and tables on the terminal, and results as JSON files: what all subcommands share.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oktopk {

// "1000", "64K", "16M", "1G": K = 1024 and so on, as in nccl-tests. UsageError names the text and the option `what`.
std::uint64_t parse_count(std::string_view text, std::string_view what);

std::string format_fixed(double value, int digits);
std::string format_seconds(double seconds);  // "12.3 us", "1.23 ms"
std::string format_bytes(double bytes);      // "123 B", "12.3 KiB"

// "a,b,c"; "all" stands for all of `known`. The caller checks every name.
std::vector<std::string> split_names(const std::string& text, const std::vector<std::string>& known);

// "1,2,3" as numbers in 1..4096. UsageError names the text and `what`.
std::vector<int> parse_ranks(const std::string& text, std::string_view what);

// "0.01,0.1" as numbers in (0, 1]. UsageError names the text and `what`.
std::vector<double> parse_densities(const std::string& text, std::string_view what);

// A column of a table whose rows are objects in JSON.
struct Column {
  using Format = std::function<std::string(const nlohmann::json& value)>;

  std::string head;
  std::string key = {};  // the field that is shown; empty: `format` gets the whole row
  Format format = {};    // empty: a text or number as it is
  int width = 0;         // of a TextTable; negative: aligned to the left
  std::string unit = {};

  std::string cell(const nlohmann::json& row) const;  // empty if the row lacks the field
};

// Formats: so many decimals of scale * value.
Column::Format fixed(int decimals, double scale = 1);
// Formats the whole row: 4-byte words per k of a field in bytes.
Column::Format words_per_k(const std::string& key);

// A table for the terminal. Rows are printed one by one as they are known.
class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void print_head() const;  // one line, or two if any column has a unit
  void print(const nlohmann::json& row) const;

 private:
  void print_line(char first, const std::function<std::string(const Column&)>& cell) const;

  std::vector<Column> columns_;
};

// UsageError if `file` is not empty and cannot be written: known before a long run.
void check_writable(const std::string& file);

// Writes `value` to `file`, unless its name is empty. UsageError if it cannot be written.
void write_json(const std::string& file, const nlohmann::json& value);

// A line on the terminal that says what a long subcommand is doing. It redraws itself and leaves nothing behind. Where
// stdout or stderr is no terminal, it prints nothing: files and pipes get results only.
class StatusLine {
 public:
  // `is_shown` false: never prints; for ranks other than the root.
  explicit StatusLine(bool is_shown = true);
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void show(const std::string& text);
  // Call it before printing a result: both go to the same terminal.
  void clear();

 private:
  bool is_shown_;
  bool is_dirty_ = false;
};

}  // namespace oktopk
