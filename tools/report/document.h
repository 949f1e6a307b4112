// SPDX-License-Identifier: Apache-2.0
// A report as a document in JSON, and the page that shows it:
//   {"title": ..., "lead": ..., "parts": [part, ...]}, where a part is one of
//   {"heading": text}, {"text": text}, {"code": text}, {"numbers": [[number, meaning], ...]},
//   {"table": Table}, {"plots": [Plot or Bars, ...]}
// The commands build documents in memory; `oktopk report` reads them from files. The page is one HTML file without
// scripts, fonts or network. It follows the reader's light or dark mode, and prints black on white.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace oktopk {

constexpr int kColours = 9;  // of the palette, safe for colour-blind readers; a larger index starts again

// A point that is not finite breaks the line. The shorter one of x and y gives the length.
struct Line {
  std::string name;
  std::vector<double> x, y;
  bool dashed = false;
  int colour = -1;    // index of the palette; -1: by position
  bool dots = false;  // points only, no line
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Line> series;
  std::string note;
};

struct BarSet {
  std::string name;
  std::vector<double> values;  // one per group; NaN, null in JSON: no bar
  int colour = -1;             // as in Line
};

struct Bars {
  std::string title, y_label;
  std::vector<std::string> groups;  // along x
  std::vector<BarSet> sets;
  bool log_y = false;
  std::vector<double> references;  // lines across
  std::string reference_label;
  std::string note;
};

// The first column is aligned left, the others right. Rows may differ in length.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::string caption;
  std::vector<std::array<int, 2>> strong;  // {row, column} to emphasise; column -1: the whole row
};

#ifndef NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT  // nlohmann-json before 3.11, as in Ubuntu 22.04
#define OKTOPK_JSON_FROM(field) nlohmann_json_t.field = nlohmann_json_j.value(#field, unset.field);
#define NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Type, ...)                      \
  inline void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))            \
  }                                                                                     \
  inline void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) { \
    const Type unset{};                                                                 \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(OKTOPK_JSON_FROM, __VA_ARGS__))            \
  }
#endif
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Line, name, x, y, dashed, colour, dots)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Plot, title, x_label, y_label, log_x, log_y, series, note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(BarSet, name, values, colour)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Bars, title, y_label, groups, sets, log_y, references, reference_label,
                                                note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Table, head, rows, caption, strong)

// A <figure>: title, legend and note as HTML around one <svg>. A value that an axis cannot show is left out; the note
// counts the values that a logarithmic axis excludes.
std::string to_figure(const Plot& plot);
std::string to_figure(const Bars& bars);

// The rows of a table as lines for a terminal. `head`, `row`: what these lines begin with.
std::string to_text(const Table& table, const std::string& head, const std::string& row);

// The same document gives the same bytes. UsageError or nlohmann::json::exception if it is no document.
std::string to_html(const nlohmann::json& document);

// UsageError if the file cannot be written.
void write_page(const std::string& file, const nlohmann::json& document);

}  // namespace oktopk
