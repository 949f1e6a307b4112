// SPDX-License-Identifier: Apache-2.0
#include "lab/bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace oktopk {
namespace {

constexpr double kWideWidth = 1080;    // over both columns of the page
constexpr std::size_t kManyBars = 48;  // more bars than that are drawn over the whole width
constexpr double kWidestBar = 46;
constexpr std::size_t kLongestLabel = 24;  // characters

std::string shorten(const std::string& text) {
  if (text.size() <= kLongestLabel) return text;
  std::size_t end = kLongestLabel;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a UTF-8 character
  return text.substr(0, end) + "\u2026";
}

class Columns {
 public:
  explicit Columns(const Bars& bars) : bars_(bars) {
    std::vector<double> values;
    for (const BarSet& set : bars.sets)
      for (std::size_t g = 0; g < size(set); ++g) add(set.values[g], values);
    if (!values.empty()) {
      for (const double reference : bars.references) add(reference, values);
      leave_room(values);
    }
    y_ = make_axis(values, bars.log_y);
  }

  std::string figure() {
    const auto groups = static_cast<double>(std::max<std::size_t>(1, bars_.groups.size()));
    const auto sets = static_cast<double>(std::max<std::size_t>(1, bars_.sets.size()));
    if (groups * sets > kManyBars) frame_.width = kWideWidth;
    frame_.right = frame_.width - 8;
    frame_.left = y_.label_width() + 10;
    slot_ = (frame_.right - frame_.left) / groups;
    choose_labels();
    slot_ = (frame_.right - frame_.left) / groups;
    width_ = std::min(kWidestBar, 0.78 * slot_ / sets);
    std::string marks = draw_y_axis(frame_, y_, bars_.y_label);
    for (std::size_t g = 0; g < bars_.groups.size(); ++g) marks += draw_group(g);
    const double base = bars_.log_y || y_.ticks.empty() ? frame_.bottom : y_.at(0);
    marks += svg_line(frame_.left, base, frame_.right, base, "axis");
    std::string legend;
    for (std::size_t s = 0; s < bars_.sets.size(); ++s)
      legend += legend_entry(bars_.sets[s].name, "box", colour_class(bars_.sets[s].colour, s));
    for (const double reference : bars_.references)
      if (!y_.ticks.empty() && can_show(reference, bars_.log_y))
        marks += svg_line(frame_.left, y_.at(reference), frame_.right, y_.at(reference), "reference");
    legend += legend_entry(bars_.reference_label, "reference", "");
    return make_figure({bars_.title, legend, bars_.note, dropped_}, frame_, marks);
  }

 private:
  std::size_t size(const BarSet& set) const { return std::min(set.values.size(), bars_.groups.size()); }

  void add(double value, std::vector<double>& values) {
    if (can_show(value, bars_.log_y))
      values.push_back(value);
    else
      dropped_ += can_show(value, false);
  }

  // For the numbers beyond the bars; on a logarithmic axis also for the foot of the smallest bar.
  void leave_room(std::vector<double>& values) const {
    if (!bars_.log_y) values.push_back(0);
    const auto [lo, hi] = std::ranges::minmax(values);
    if (bars_.log_y) {
      values.insert(values.end(), {lo / 1.5, hi * 1.2});
      return;
    }
    if (hi > 0) values.push_back(hi + 0.07 * (hi - lo));
    if (lo < 0) values.push_back(lo - 0.09 * (hi - lo));
  }

  // Level if they fit beside each other, else sloping, and only as many as fit that way.
  void choose_labels() {
    double longest = 0;
    for (const std::string& group : bars_.groups) longest = std::max(longest, text_width(shorten(group)));
    slope_ = longest + 10 > slot_;
    frame_.below = slope_ ? 0.574 * longest + 18 : 22;  // sine and cosine of 35 degrees
    if (slope_) frame_.left = std::max(frame_.left, 0.819 * longest - slot_ / 2);
    label_every_ = slope_ ? static_cast<std::size_t>(std::ceil(17 / slot_)) : 1;
  }

  std::string draw_group(std::size_t g) const {
    const double centre = frame_.left + (static_cast<double>(g) + 0.5) * slot_;
    std::string out;
    for (std::size_t s = 0; s < bars_.sets.size(); ++s) {
      const double place = static_cast<double>(s) - static_cast<double>(bars_.sets.size()) / 2;
      if (g < size(bars_.sets[s])) out += draw_bar(s, g, centre + place * width_);
    }
    if (g % label_every_ != 0) return out;
    const std::string name = shorten(bars_.groups[g]);
    if (!slope_) return out + svg_text(centre, frame_.bottom + 16, "middle", name);
    return out + fmt::format("<text class=\"end\" transform=\"translate({} {}) rotate(-35)\">{}</text>\n",
                             px(centre + 5), px(frame_.bottom + 15), escape(name));
  }

  std::string draw_bar(std::size_t s, std::size_t g, double left) const {
    const BarSet& set = bars_.sets[s];
    const double value = set.values[g];
    if (!can_show(value, bars_.log_y)) return "";
    const double tip = y_.at(value);
    const double foot = bars_.log_y ? y_.first : y_.at(0);
    const double height = std::max(1.0, std::abs(foot - tip));  // zero differs from an absent value
    const double gap = std::min(1.5, 0.15 * width_);
    const std::string text =
        fmt::format("{}\n{}: {}", bars_.groups[g], set.name.empty() ? bars_.y_label : set.name, format_value(value));
    std::string out =
        fmt::format("<rect class=\"bar {}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
                    colour_class(set.colour, s), px(left + gap / 2), px(foot >= tip ? foot - height : foot),
                    px(width_ - gap), px(height), escape(text));
    const std::string number = format_value(value, 3);
    if (text_width(number) > width_ + 4) return out;
    return out + svg_text(left + width_ / 2, value < 0 && !bars_.log_y ? tip + 12 : tip - 4, "number middle", number);
  }

  const Bars& bars_;
  Axis y_;
  PlotFrame frame_;
  double slot_ = 0, width_ = 0;  // of a group, of a bar
  bool slope_ = false;
  std::size_t label_every_ = 1;
  std::size_t dropped_ = 0;
};

}  // namespace

std::string to_figure(const Bars& bars) { return Columns(bars).figure(); }

std::string any_figure(const nlohmann::json& plot) {
  return plot.contains("groups") ? to_figure(plot.get<Bars>()) : line_figure(plot);
}

}  // namespace oktopk
