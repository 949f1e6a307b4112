// SPDX-License-Identifier: Apache-2.0
#include "tools/report/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/report/markup.h"
#include "tools/report/plot.h"

namespace oktopk {
namespace {

constexpr double kMarksHeight = 226;
constexpr double kTitleSize = 15;
constexpr double kTitleLine = 20;
constexpr double kLegendLine = 20;
constexpr double kSwatch = 20;
constexpr double kLegendGap = 16;
constexpr double kNoteSize = 11.5;
constexpr double kNoteLine = 16;

std::string text_at(double x, double y, std::string_view css, std::string_view text) {
  return fmt::format(R"(<text class="{}" x="{}" y="{}">{}</text>)"
                     "\n",
                     css, px(x), px(y), escape(text));
}

std::string line_at(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format(R"(<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>)"
                     "\n",
                     css, px(x1), px(y1), px(x2), px(y2));
}

std::string swatch(const LegendEntry& entry, double x, double y) {
  if (entry.mark == LegendMark::box)
    return fmt::format(R"(<rect class="bar" x="{}" y="{}" width="11" height="11" rx="2"/>)", px(x), px(y - 10));
  if (entry.mark == LegendMark::reference) return line_at(x, y - 4, x + kSwatch - 4, y - 4, "reference");
  return fmt::format(R"(<path class="line{}" d="M{} {}h{}"/>)", entry.dashed ? " dashed" : "", px(x), px(y - 4),
                     px(kSwatch - 4));
}

// Lays the entries out in rows, the first baseline at `y`, which moves below the last.
std::string draw_legend(const std::vector<LegendEntry>& legend, double width, double& y) {
  std::string out;
  double x = 0;
  for (const LegendEntry& entry : legend) {
    const double mark = entry.mark == LegendMark::box ? kSwatch - 4 : kSwatch;
    const std::string name = shorten(entry.name, width - mark, kLegendSize);
    const double needed = mark + text_width(name, kLegendSize);
    if (x > 0 && x + needed > width) {
      x = 0;
      y += kLegendLine;
    }
    out += fmt::format(R"(<g class="c{}">)", entry.colour) + swatch(entry, x, y);
    out += text_at(x + mark, y, "key", name) + "</g>\n";
    x += needed + kLegendGap;
  }
  y += kLegendLine;
  return out;
}

std::string open_svg(const FrameText& text, double width, double height) {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" class="plot{}" )"
                     R"(viewBox="0 0 {} {}" role="img" aria-label="{}">)"
                     "\n",
                     width > FrameRoom{}.width ? " wide" : "", px(width), px(height), escape(text.title));
}

}  // namespace

std::string Frame::nothing() const { return text_at((left + right) / 2, (top + bottom) / 2, "tick middle", "no data"); }

Frame lay_out(const FrameText& text, const FrameRoom& room) {
  Frame frame;
  std::string head;
  double y = 0;
  for (const std::string& line : wrap(text.title, room.width, kTitleSize))
    head += text_at(0, (y += kTitleLine) - 5, "title", line);
  if (!text.legend.empty()) {
    y += kLegendLine - 3;
    head += draw_legend(text.legend, room.width, y);
    y -= kLegendLine - 3;
  }
  if (!text.y_label.empty()) {
    y += 24;
    head += text_at(0, y - 4, "label", shorten(text.y_label, room.width, kTickSize));
  }
  frame.top = y + 12;
  frame.bottom = frame.top + kMarksHeight;
  frame.left = room.left;
  frame.right = room.width - room.right;

  y = frame.bottom + room.tick_labels;
  if (!text.x_label.empty()) {
    y += 18;
    const double width = frame.right - frame.left;
    frame.foot_ +=
        text_at((frame.left + frame.right) / 2, y - 2, "label middle", shorten(text.x_label, width, kTickSize));
  }
  const auto note = wrap(text.note, room.width, kNoteSize);
  if (!note.empty()) y += 8;
  for (const std::string& line : note) frame.foot_ += text_at(0, (y += kNoteLine) - 3, "note", line);
  frame.foot_ += "</svg>\n";
  frame.head_ = open_svg(text, room.width, y + 4) + head;
  return frame;
}

double label_width(const Axis& axis) {
  double width = 0;
  for (const Tick& tick : axis.ticks) width = std::max(width, text_width(tick.label, kTickSize));
  return width;
}

std::string draw_y_axis(const Frame& frame, const Axis& axis) {
  std::string out;
  for (const Tick& tick : axis.ticks) {
    const double y = axis.at(tick.value);
    out += line_at(frame.left, y, frame.right, y, tick.label.empty() ? "grid minor" : "grid");
    if (!tick.label.empty()) out += text_at(frame.left - 8, y + 4, "tick end", tick.label);
  }
  return out;
}

std::string draw_x_axis(const Frame& frame, const Axis& axis) {
  std::string out;
  for (const Tick& tick : axis.ticks) {
    const double x = axis.at(tick.value);
    // Vertical lines help only where the steps between them are not equal.
    if (axis.log) out += line_at(x, frame.top, x, frame.bottom, tick.label.empty() ? "grid minor" : "grid");
    if (tick.label.empty()) continue;
    out += line_at(x, frame.bottom, x, frame.bottom + 4, "axis");
    out += text_at(x, frame.bottom + 17, "tick middle", tick.label);
  }
  return out + line_at(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
}

int palette_index(int colour, std::size_t position) {
  return colour >= 0 ? colour % kColours : static_cast<int>(position % kColours);
}

std::string with_dropped(std::string note, std::size_t dropped) {
  if (dropped == 0) return note;
  if (!note.empty()) note += ' ';
  return note + fmt::format("Not shown on the logarithmic scale: {} {} at or below zero.", dropped,
                            dropped == 1 ? "value" : "values");
}

}  // namespace oktopk
