// SPDX-License-Identifier: Apache-2.0
// Bars in groups. A linear axis includes zero, where the bars begin; on a logarithmic one they
// begin at its lower end, and only their tips mean something. Labels of groups slope when they are
// long, and with many bars the plot is as wide as the page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/report/axes.h"
#include "tools/report/frame.h"
#include "tools/report/markup.h"
#include "tools/report/plot.h"

namespace oktopk {
namespace {

constexpr double kWidth = 520;
constexpr double kWideWidth = 1080;    // over both columns of the page
constexpr std::size_t kManyBars = 48;  // from here on
constexpr double kWidestBar = 46;
constexpr double kLongestLabel = 120;
constexpr double kSine = 0.5736;  // of 35 degrees, the slope of labels that do not fit
constexpr double kCosine = 0.8192;
constexpr double kNumberSize = 11;

class Columns {
 public:
  explicit Columns(const Bars& bars) : bars_(bars) {
    Extent values;
    for (const Bars::Set& set : bars.sets)
      for (std::size_t g = 0; g < size(set); ++g) add(set.values[g], values);
    empty_ = values.empty;
    if (!empty_) add(bars.reference, values);
    if (!empty_) leave_room(values);
    y_ = make_axis(values, {.log = bars.log_y, .round_ends = bars.log_y, .ticks = 6});
  }

  std::string svg() {
    const bool wide = bars_.groups.size() * std::max<std::size_t>(1, bars_.sets.size()) > kManyBars;
    FrameRoom room = {.width = wide ? kWideWidth : kWidth, .left = label_width(y_) + 10};
    choose_labels(room);
    const Frame frame = lay_out({bars_.title, "", bars_.y_label, with_dropped(bars_.note, dropped_), legend()}, room);
    y_.first = frame.bottom;
    y_.last = frame.top;
    std::string out = frame.begin() + draw_y_axis(frame, y_);
    if (empty_) out += frame.nothing();
    for (std::size_t g = 0; g < bars_.groups.size(); ++g) out += draw_group(frame, g);
    out += draw_base(frame);
    if (!empty_) out += draw_reference(frame);
    return out + frame.end();
  }

 private:
  std::size_t size(const Bars::Set& set) const { return std::min(set.values.size(), bars_.groups.size()); }

  void add(double value, Extent& extent) {
    if (can_show(value, bars_.log_y))
      extent.add(value);
    else
      dropped_ += can_show(value, false);
  }

  // For the numbers beyond the bars; on a logarithmic axis also for a foot to stand on.
  void leave_room(Extent& values) const {
    if (bars_.log_y) {
      values.lo /= 1.5;
      values.hi *= 1.2;
      return;
    }
    values.add(0);
    const double span = values.hi - values.lo;
    if (values.hi > 0) values.hi += 0.07 * span;
    if (values.lo < 0) values.lo -= 0.09 * span;
  }

  std::vector<LegendEntry> legend() const {
    std::vector<LegendEntry> entries;
    for (std::size_t s = 0; s < bars_.sets.size(); ++s) {
      const Bars::Set& set = bars_.sets[s];
      if (!set.name.empty())
        entries.push_back({.name = set.name, .colour = palette_index(set.colour, s), .mark = LegendMark::box});
    }
    // In the legend and not on the line, where it would lie across the bars.
    if (!bars_.reference_label.empty() && can_show(bars_.reference, bars_.log_y))
      entries.push_back({.name = bars_.reference_label, .mark = LegendMark::reference});
    return entries;
  }

  // Level if they fit beside each other, else sloping, and only as many as fit that way.
  void choose_labels(FrameRoom& room) {
    double longest = 0;
    for (const std::string& group : bars_.groups)
      longest = std::max(longest, std::min(kLongestLabel, text_width(group, kTickSize)));
    const auto groups = static_cast<double>(std::max<std::size_t>(1, bars_.groups.size()));
    const double slot = (room.width - room.left - room.right) / groups;
    slope_ = longest + 10 > slot;
    if (!slope_) return;
    room.left = std::max(room.left, longest * kCosine - slot / 2);
    room.tick_labels = longest * kSine + 16;
    label_every_ = static_cast<std::size_t>(std::ceil(1.4 * kTickSize / slot));
  }

  std::string draw_group(const Frame& frame, std::size_t g) const {
    const double slot = (frame.right - frame.left) / static_cast<double>(bars_.groups.size());
    const double centre = frame.left + (static_cast<double>(g) + 0.5) * slot;
    const auto sets = static_cast<double>(std::max<std::size_t>(1, bars_.sets.size()));
    const double width = std::min(kWidestBar, 0.78 * slot / sets);
    std::string out;
    for (std::size_t s = 0; s < bars_.sets.size(); ++s) {
      const double left = centre + (static_cast<double>(s) - sets / 2) * width;
      if (g < size(bars_.sets[s])) out += draw_bar(s, g, left, width);
    }
    return g % label_every_ == 0 ? out + group_label(frame, centre, g) : out;
  }

  std::string draw_bar(std::size_t s, std::size_t g, double left, double width) const {
    const Bars::Set& set = bars_.sets[s];
    const double value = set.values[g];
    if (!can_show(value, bars_.log_y)) return "";
    const double tip = y_.at(value);
    const double foot = bars_.log_y ? y_.first : y_.at(0);
    // A sliver even for zero, so that it differs from an absent value.
    const double height = std::max(1.0, std::abs(foot - tip));
    const double gap = std::min(1.5, 0.15 * width);
    const std::string name = set.name.empty() ? bars_.y_label : set.name;
    std::string out =
        fmt::format(R"(<rect class="bar c{}" x="{}" y="{}" width="{}" height="{}" rx="{}">)"
                    R"(<title>{}</title></rect>)"
                    "\n",
                    palette_index(set.colour, s), px(left + gap / 2), px(foot - tip >= 0 ? foot - height : foot),
                    px(width - gap), px(height), width > 6 ? "1.5" : "0",
                    escape(fmt::format("{}\n{}: {}", bars_.groups[g], name, format_value(value))));
    const std::string number = format_value(value, 3);
    if (text_width(number, kNumberSize) > width + 2) return out;
    out += fmt::format(R"(<text class="number middle" x="{}" y="{}">{}</text>)"
                       "\n",
                       px(left + width / 2), px(value < 0 && !bars_.log_y ? tip + 12 : tip - 4), number);
    return out;
  }

  std::string group_label(const Frame& frame, double centre, std::size_t g) const {
    const std::string name = escape(shorten(bars_.groups[g], kLongestLabel, kTickSize));
    const double y = frame.bottom + 16;
    if (!slope_)
      return fmt::format("<text class=\"tick middle\" x=\"{}\" y=\"{}\">{}</text>\n", px(centre), px(y), name);
    return fmt::format("<text class=\"tick end\" transform=\"translate({} {}) rotate(-35)\">{}</text>\n",
                       px(centre + 5), px(y - 1), name);
  }

  std::string draw_base(const Frame& frame) const {
    const bool inside = !bars_.log_y && !empty_;
    const std::string y = px(inside ? y_.at(0) : frame.bottom);
    return fmt::format(R"(<line class="axis" x1="{}" y1="{}" x2="{}" y2="{}"/>)"
                       "\n",
                       px(frame.left), y, px(frame.right), y);
  }

  std::string draw_reference(const Frame& frame) const {
    if (!can_show(bars_.reference, bars_.log_y)) return "";
    const std::string y = px(y_.at(bars_.reference));
    return fmt::format(R"(<line class="reference" x1="{}" y1="{}" x2="{}" y2="{}"/>)"
                       "\n",
                       px(frame.left), y, px(frame.right), y);
  }

  const Bars& bars_;
  Axis y_;
  bool empty_ = false;
  bool slope_ = false;
  std::size_t label_every_ = 1;
  std::size_t dropped_ = 0;
};

}  // namespace

std::string to_svg(const Bars& bars) { return Columns(bars).svg(); }

}  // namespace oktopk
