// SPDX-License-Identifier: Apache-2.0
// Lines over a number.
#include <fmt/format.h>

#include <algorithm>

#include "tools/report/document.h"
#include "tools/report/drawing.h"

namespace oktopk {
namespace {

constexpr std::size_t kMarkedPoints = 25;  // a line of at most so many points shows them as dots

std::size_t length(const Line& series) { return std::min(series.x.size(), series.y.size()); }

class LinePlot {
 public:
  explicit LinePlot(const Plot& plot) : plot_(plot) {
    std::vector<double> xs, ys;
    for (const Line& series : plot.series)
      for (std::size_t i = 0; i < length(series); ++i) {
        if (has_place(series, i)) {
          xs.push_back(series.x[i]);
          ys.push_back(series.y[i]);
        } else {
          dropped_ += can_show(series.x[i], false) && can_show(series.y[i], false);
        }
      }
    x_ = make_axis(xs, plot.log_x);
    y_ = make_axis(ys, plot.log_y);
  }

  std::string figure() {
    PlotFrame frame;
    frame.left = y_.label_width() + 10;
    std::string marks = draw_y_axis(frame, y_, plot_.y_label) + draw_x_axis(frame);
    std::string legend;
    for (std::size_t s = 0; s < plot_.series.size(); ++s) {
      const Line& series = plot_.series[s];
      const std::string colour = colour_class(series.colour, s);
      marks += fmt::format("<g class=\"{}\">\n{}</g>\n", colour, draw(series));
      legend += legend_entry(series.name, series.dots ? "dots" : series.dashed ? "dashed" : "line", colour);
    }
    return make_figure({plot_.title, legend, plot_.note, dropped_}, frame, marks);
  }

 private:
  bool has_place(const Line& series, std::size_t i) const {
    return i < length(series) && can_show(series.x[i], plot_.log_x) && can_show(series.y[i], plot_.log_y);
  }

  std::string draw_x_axis(const PlotFrame& frame) {
    x_.first = frame.left;
    x_.last = frame.right;
    std::string out;
    for (const Tick& tick : x_.ticks) {
      const double x = x_.at(tick.value);
      if (x_.log) out += svg_line(x, frame.top, x, frame.bottom, tick.label.empty() ? "grid minor" : "grid");
      if (tick.label.empty()) continue;
      out += svg_line(x, frame.bottom, x, frame.bottom + 4, "axis");
      out += svg_text(x, frame.bottom + 17, "middle", tick.label);
    }
    out += svg_text((frame.left + frame.right) / 2, frame.bottom + 36, "middle", plot_.x_label);
    return out + svg_line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  }

  std::string draw(const Line& series) const {
    const bool marked = series.dots || (length(series) > 2 && length(series) <= kMarkedPoints);
    std::string path, dots;
    for (std::size_t i = 0; i < length(series); ++i) {
      if (!has_place(series, i)) continue;
      const bool begins = i == 0 || !has_place(series, i - 1);
      const std::string x = px(x_.at(series.x[i])), y = px(y_.at(series.y[i]));
      if (!series.dots) path += fmt::format("{}{} {}", begins ? 'M' : 'L', x, y);
      if (marked || (begins && !has_place(series, i + 1)))
        dots += fmt::format("<circle class=\"dot\" cx=\"{}\" cy=\"{}\" r=\"3\"><title>{}</title></circle>\n", x, y,
                            escape(fmt::format("{}\n{}: {}\n{}: {}", series.name, plot_.x_label,
                                               format_value(series.x[i]), plot_.y_label, format_value(series.y[i]))));
    }
    if (path.empty()) return dots;
    return fmt::format("<path class=\"line{}\" d=\"{}\"/>\n", series.dashed ? " dashed" : "", path) + dots;
  }

  const Plot& plot_;
  Axis x_, y_;
  std::size_t dropped_ = 0;
};

}  // namespace

std::string to_figure(const Plot& plot) { return LinePlot(plot).figure(); }

}  // namespace oktopk
