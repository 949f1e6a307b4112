// SPDX-License-Identifier: Apache-2.0
// What is around the marks of a plot: title, legend, axis labels, grid, note. lay_out() decides the
// size of everything from the text there is; the axes then get the rectangle that is left, and the
// marks go between begin() and end().
//
//     title / legend, in rows / y label / [ marks over the grid ] / tick labels / x label / note
#pragma once

#include <string>
#include <vector>

#include "tools/report/axes.h"

namespace oktopk {

constexpr double kTickSize = 12;  // font sizes, as in the page's style
constexpr double kLegendSize = 12.5;

enum class LegendMark { line, box, reference };

struct LegendEntry {
  std::string name;
  int colour = 0;
  bool dashed = false;
  LegendMark mark = LegendMark::line;
};

struct FrameText {
  std::string title, x_label, y_label, note;
  std::vector<LegendEntry> legend;
};

struct FrameRoom {
  double width = 520;
  double left = 40;         // for the labels of the y axis
  double right = 18;        // for half of the last label of the x axis
  double tick_labels = 20;  // the height of what is below the x axis
};

struct Frame {
  double left = 0, right = 0, top = 0, bottom = 0;  // of the rectangle for the marks

  std::string begin() const { return head_; }
  std::string end() const { return foot_; }
  // Says that there is no data, where the marks would be.
  std::string nothing() const;

 private:
  friend Frame lay_out(const FrameText& text, const FrameRoom& room);
  std::string head_, foot_;
};

Frame lay_out(const FrameText& text, const FrameRoom& room);

// The width of its longest label.
double label_width(const Axis& axis);

std::string draw_y_axis(const Frame& frame, const Axis& axis);
std::string draw_x_axis(const Frame& frame, const Axis& axis);

// `colour` of the caller, or the position if negative, as an index of the palette.
int palette_index(int colour, std::size_t position);

// The note, with a sentence on `dropped` values if there are any.
std::string with_dropped(std::string note, std::size_t dropped);

}  // namespace oktopk
