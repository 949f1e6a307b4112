// SPDX-License-Identifier: Apache-2.0
#include "tools/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/report/axes.h"
#include "tools/report/curve.h"
#include "tools/report/frame.h"
#include "tools/report/markup.h"

namespace oktopk {
namespace {

constexpr std::size_t kMarkedPoints = 25;  // up to here every point is marked
constexpr double kRoomForLabels = 340;     // of the x axis, with space between them
constexpr std::size_t kHoverPoints = 16;   // of a longer line

std::size_t length(const Series& series) { return std::min(series.x.size(), series.y.size()); }

bool has_place(const Plot& plot, const Series& series, std::size_t i) {
  return can_show(series.x[i], plot.log_x) && can_show(series.y[i], plot.log_y);
}

// Finite, but at or below zero on a logarithmic axis.
std::size_t count_dropped(const Plot& plot) {
  std::size_t dropped = 0;
  for (const Series& series : plot.series)
    for (std::size_t i = 0; i < length(series); ++i)
      dropped += can_show(series.x[i], false) && can_show(series.y[i], false) && !has_place(plot, series, i);
  return dropped;
}

class Lines {
 public:
  explicit Lines(const Plot& plot) : plot_(plot) {
    Extent xs, ys;
    for (const Series& series : plot.series) {
      for (std::size_t i = 0; i < length(series); ++i) {
        if (!has_place(plot, series, i)) continue;
        xs.add(series.x[i]);
        ys.add(series.y[i]);
      }
    }
    empty_ = xs.empty;
    for (const int ticks : {6, 3, 1}) {
      x_ = make_axis(xs, {.log = plot.log_x, .reach = 0.03, .zero_below = 0.05, .ticks = ticks});
      if (label_width(x_) * ticks < kRoomForLabels) break;
    }
    y_ = make_axis(ys, {.log = plot.log_y, .round_ends = true, .zero_below = 0.4});
  }

  std::string svg() {
    const FrameText text = {plot_.title, plot_.x_label, plot_.y_label, with_dropped(plot_.note, count_dropped(plot_)),
                            legend()};
    const Frame frame = lay_out(text, {.left = label_width(y_) + 10, .right = std::max(18.0, label_width(x_) / 2 + 2)});
    x_.first = frame.left;
    x_.last = frame.right;
    y_.first = frame.bottom;
    y_.last = frame.top;
    std::string out = frame.begin() + draw_y_axis(frame, y_) + draw_x_axis(frame, x_);
    if (empty_) out += frame.nothing();
    for (const std::size_t s : drawing_order()) out += draw(s);
    return out + frame.end();
  }

 private:
  std::vector<LegendEntry> legend() const {
    std::vector<LegendEntry> entries;
    for (std::size_t s = 0; s < plot_.series.size(); ++s) {
      const Series& series = plot_.series[s];
      if (series.faint || series.name.empty()) continue;
      entries.push_back({series.name, palette_index(series.colour, s), series.dashed});
    }
    return entries;
  }

  std::vector<std::size_t> drawing_order() const {
    std::vector<std::size_t> order(plot_.series.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_partition(order.begin(), order.end(), [&](std::size_t s) { return plot_.series[s].faint; });
    return order;
  }

  std::vector<CurvePoint> points_of(const Series& series) const {
    std::vector<CurvePoint> points;
    for (std::size_t i = 0; i < length(series); ++i) {
      if (has_place(plot_, series, i))
        points.push_back({x_.at(series.x[i]), y_.at(series.y[i]), i});
      else
        points.push_back({.source = i, .gap = true});
    }
    return thinned(points, x_.first, x_.last);
  }

  std::string draw(std::size_t s) const {
    const Series& series = plot_.series[s];
    const std::vector<CurvePoint> points = points_of(series);
    std::string out =
        fmt::format("<g class=\"c{}{}\">\n", palette_index(series.colour, s), series.faint ? " faint" : "");
    out += line(points, series.dashed);
    if (!series.faint) out += marks(series, points);
    return out + "</g>\n";
  }

  static std::string line(const std::vector<CurvePoint>& points, bool dashed) {
    std::string d;
    bool pen_down = false;
    for (const CurvePoint& p : points) {
      if (!p.gap) d += fmt::format("{}{} {}", pen_down ? 'L' : 'M', px(p.x), px(p.y));
      pen_down = !p.gap;
    }
    if (d.empty()) return "";
    return fmt::format("<path class=\"line{}\" d=\"{}\"/>\n", dashed ? " dashed" : "", d);
  }

  // Dots to see where there are few points (but more than the ends of a straight line), or where a
  // point has no neighbour to draw a line to; dots to find with the pointer on a longer line.
  std::string marks(const Series& series, const std::vector<CurvePoint>& points) const {
    std::string out;
    const bool few = length(series) > 2 && length(series) <= kMarkedPoints;
    const std::size_t every = (points.size() + kHoverPoints - 1) / kHoverPoints;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].gap) continue;
      const bool alone = (i == 0 || points[i - 1].gap) && (i + 1 == points.size() || points[i + 1].gap);
      const bool last = i + 1 == points.size();
      if (few || alone)
        out += dot(series, points[i], "dot");
      else if (last || i % every == every / 2)
        out += dot(series, points[i], "spot");
    }
    return out;
  }

  std::string dot(const Series& series, const CurvePoint& p, std::string_view css) const {
    const std::string tip = fmt::format("{}\n{}: {}\n{}: {}", series.name, plot_.x_label.empty() ? "x" : plot_.x_label,
                                        format_value(series.x[p.source]), plot_.y_label.empty() ? "y" : plot_.y_label,
                                        format_value(series.y[p.source]));
    return fmt::format(R"(<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>)"
                       "\n",
                       css, px(p.x), px(p.y), css == "dot" ? "3" : "5", escape(tip));
  }

  const Plot& plot_;
  Axis x_, y_;
  bool empty_ = false;
};

}  // namespace

std::string to_svg(const Plot& plot) { return Lines(plot).svg(); }

}  // namespace oktopk
