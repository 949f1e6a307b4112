// SPDX-License-Identifier: Apache-2.0
// The pieces that plots of lines and of bars share: axes, pieces of SVG, and the <figure> around all. Lengths are
// pixels of the viewBox.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oktopk {

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
