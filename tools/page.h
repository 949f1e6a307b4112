// SPDX-License-Identifier: Apache-2.0
// A document in JSON, and the page that shows it:
//   {"title": ..., "lead": ..., "parts": [part, ...]}, where a part is one of
//   {"heading": text}, {"text": text}, {"code": text}, {"numbers": [[number, meaning], ...]},
//   {"table": Table}, {"plots": [Plot, ...]}
// `oktopk train --html` writes such a page. It is one HTML file without scripts, fonts or network, follows the reader's
// light or dark mode, and prints black on white. The pieces of a plot (axes, SVG, the <figure> around all) are public
// for other kinds of plots (lab/bars.h). Lengths are pixels of the viewBox.
#pragma once

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Table, head, rows, caption, strong)

// A <figure>: title, legend and note as HTML around one <svg>. A value that an axis cannot show is left out; the note
// counts the values that a logarithmic axis excludes.
std::string to_figure(const Plot& plot);

// The rows of a table as lines for a terminal. `head`, `row`: what these lines begin with.
std::string to_text(const Table& table, const std::string& head, const std::string& row);

// The <figure> of an entry of "plots".
using FigureOf = std::function<std::string(const nlohmann::json& plot)>;
std::string line_figure(const nlohmann::json& plot);  // a Plot

// The same document gives the same bytes. UsageError or nlohmann::json::exception if it is no document.
std::string to_html(const nlohmann::json& document, const FigureOf& figure_of = line_figure);

// UsageError if the file cannot be written.
void write_page(const std::string& file, const nlohmann::json& document, const FigureOf& figure_of = line_figure);

// ---- Pieces of plots ----

// Whether an axis can show the value: finite, not near the ends of double (where widening overflows), and positive
// if the axis is logarithmic.
bool can_show(double value, bool log);

struct Tick {
  double value = 0;
  std::string label;  // empty: a minor line
};

// Covers values, widened to round numbers, and to zero where that is near. Ticks stand at 1, 2 or 5 times a power of
// ten.
struct Axis {
  double lo = 0, hi = 1;
  bool log = false;
  std::vector<Tick> ticks = {};  // none if there was nothing to show
  double first = 0, last = 100;  // positions of lo and hi

  double at(double value) const;
  double label_width() const;  // of the longest label
};
Axis make_axis(const std::vector<double>& values, bool log);

// At most `digits` significant ones, no trailing zeros, a suffix k, M, G, T, P, E from 1000 on: 2.5k, 0.05, 2e-5.
std::string format_value(double value, int digits = 4);

// For text and for quoted attributes; control characters that markup cannot hold are left out.
std::string escape(std::string_view text);

std::string px(double length);               // "12", "12.3": at most one decimal
double text_width(const std::string& text);  // an estimate: the font is the reader's
std::string svg_text(double x, double y, std::string_view css, std::string_view text);
std::string svg_line(double x1, double y1, double x2, double y2, std::string_view css);

// The class of a colour: the caller's choice, or the position if that is negative.
std::string colour_class(int colour, std::size_t position);

// `kind`: line, dashed, dots, box or reference, as in the style of the page.
std::string legend_entry(std::string_view name, std::string_view kind, const std::string& colour);

// The rectangle for the marks, and the room below it for the labels of the x axis.
struct PlotFrame {
  double width = 520;
  double left = 40, right = 502, top = 28, bottom = 254;
  double below = 40;
};

// Grid lines, labels and the label of the axis; "no data" if the axis has no ticks. Sets the axis's positions.
std::string draw_y_axis(const PlotFrame& frame, Axis& axis, std::string_view label);

struct FigureText {
  std::string title, legend, note;
  std::size_t dropped = 0;  // values that a logarithmic axis cannot show
};
std::string make_figure(const FigureText& text, const PlotFrame& frame, const std::string& marks);

}  // namespace oktopk
