// SPDX-License-Identifier: Apache-2.0
#include "tools/report/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tools/report/document.h"

namespace oktopk {
namespace {

constexpr double kLargest = 1e300;
constexpr double kSmallest = 1e-300;
constexpr double kSlack = 1e-9;  // relative: rounding errors must not cost an end of the axis its tick
constexpr int kTicks = 5;
constexpr double kNearZero = 0.4;  // an end that is at most this part of the other one moves to zero

int exponent_of(double value) { return static_cast<int>(std::floor(std::log10(std::abs(value)) + kSlack)); }

// The smallest of 1, 2, 5 times a power of ten that makes at most `target` steps of the span.
double nice_step(double span, int target) {
  const double power = std::pow(10.0, exponent_of(span / target));
  for (const double factor : {1.0, 2.0, 5.0})
    if (span <= target * factor * power * (1 + kSlack)) return factor * power;
  return 10 * power;
}

std::vector<Tick> linear_ticks(double lo, double hi) {
  const double step = nice_step(hi - lo, kTicks);
  const int digits = exponent_of(std::max(std::abs(lo), std::abs(hi))) - exponent_of(step) + 2;
  std::vector<Tick> ticks;
  const double last = std::floor(hi / step + kSlack);
  for (double i = std::ceil(lo / step - kSlack); i <= last; ++i)
    ticks.push_back({i * step, format_value(i * step, std::clamp(digits, 1, 15))});
  return ticks;
}

// Labels at the decades if there are three of them, also at 2 and 5 if there are fewer. A shorter axis has linear
// ticks.
std::vector<Tick> log_ticks(double lo, double hi) {
  const auto within = [&](double v) { return v >= lo * (1 - kSlack) && v <= hi * (1 + kSlack); };
  int decades = 0;
  int candidates = 0;
  for (int e = exponent_of(lo); e <= exponent_of(hi); ++e) {
    decades += within(std::pow(10.0, e));
    for (const int m : {1, 2, 5}) candidates += within(m * std::pow(10.0, e));
  }
  if (candidates < 3) return linear_ticks(lo, hi);
  const int every = decades > 8 ? static_cast<int>(nice_step(decades, 7)) : 1;
  std::vector<Tick> ticks;
  for (int e = exponent_of(lo); e <= exponent_of(hi); ++e)
    for (int m = 1; m <= (decades <= 6 ? 9 : 1); ++m) {
      const double value = m * std::pow(10.0, e);
      const bool labelled = e % every == 0 && (m == 1 || (decades < 3 && (m == 2 || m == 5)));
      if (within(value) && (labelled || every <= 5)) ticks.push_back({value, labelled ? format_value(value) : ""});
    }
  return ticks;
}

void widen(double& lo, double& hi) {
  const double size = std::max(std::abs(lo), std::abs(hi));
  if (hi - lo <= kSlack * size || hi - lo < kSmallest) {
    const double pad = size < kSmallest ? 0 : 0.1 * size;
    lo -= pad;
    hi += pad == 0 ? 1 : pad;
  }
  if (lo > 0 && lo <= kNearZero * hi) lo = 0;
  if (hi < 0 && hi >= kNearZero * lo) hi = 0;
  const double step = nice_step(hi - lo, kTicks);
  lo = std::floor(lo / step + kSlack) * step;
  hi = std::ceil(hi / step - kSlack) * step;
}

void widen_log(double& lo, double& hi) {
  if (hi <= lo * (1 + kSlack)) {
    lo /= 2;
    hi *= 2;
  }
  const auto power_below = [](double value) { return std::pow(10.0, exponent_of(value)); };
  lo = std::floor(lo / power_below(lo) + kSlack) * power_below(lo);
  hi = std::ceil(hi / power_below(hi) - kSlack) * power_below(hi);
}

std::string without_trailing_zeros(std::string number) {
  if (number.find('.') == std::string::npos) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

}  // namespace

bool can_show(double value, bool log) { return std::abs(value) <= kLargest && (!log || value >= kSmallest); }

double Axis::at(double value) const {
  // Not the logarithm of a quotient: the quotient may overflow.
  const double part = log ? (std::log(value) - std::log(lo)) / (std::log(hi) - std::log(lo)) : (value - lo) / (hi - lo);
  return first + part * (last - first);
}

double Axis::label_width() const {
  double width = 0;
  for (const Tick& tick : ticks) width = std::max(width, text_width(tick.label));
  return width;
}

Axis make_axis(const std::vector<double>& values, bool log) {
  Axis axis{.log = log};
  if (values.empty()) return axis;
  const auto [lo, hi] = std::ranges::minmax(values);
  axis.lo = lo;
  axis.hi = hi;
  if (log)
    widen_log(axis.lo, axis.hi);
  else
    widen(axis.lo, axis.hi);
  axis.ticks = log ? log_ticks(axis.lo, axis.hi) : linear_ticks(axis.lo, axis.hi);
  return axis;
}

std::string format_value(double value, int digits) {
  if (std::isnan(value)) return "n/a";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return "0";
  // The exponent after rounding: 999,999 with four digits is 1M and not 1000k.
  const std::string rounded = fmt::format("{:.{}e}", value, digits - 1);
  const std::size_t e = rounded.find('e');
  const int exponent = std::atoi(rounded.c_str() + e + 1);
  constexpr std::string_view kSuffixes = "kMGTPE";
  if (exponent < -3 || exponent >= 21)
    return fmt::format("{}e{}", without_trailing_zeros(rounded.substr(0, e)), exponent);
  const int thousands = std::max(0, exponent / 3);
  const std::string number =
      fmt::format("{:.{}f}", value / std::pow(1000.0, thousands), std::max(0, digits - 1 - exponent + 3 * thousands));
  return without_trailing_zeros(number) + (thousands > 0 ? std::string(1, kSuffixes[thousands - 1]) : std::string());
}

std::string px(double length) {
  const double tenths = std::round(length * 10);
  if (std::fmod(tenths, 10) == 0) return fmt::format("{:.0f}", tenths == 0 ? 0.0 : tenths / 10);
  return fmt::format("{:.1f}", tenths / 10);
}

double text_width(const std::string& text) { return 6.9 * static_cast<double>(text.size()); }

std::string svg_text(double x, double y, std::string_view css, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", css, px(x), px(y), escape(text));
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", css, px(x1), px(y1), px(x2),
                     px(y2));
}

std::string colour_class(int colour, std::size_t position) {
  return fmt::format("c{}", (colour >= 0 ? static_cast<std::size_t>(colour) : position) % kColours);
}

std::string legend_entry(std::string_view name, std::string_view kind, const std::string& colour) {
  if (name.empty()) return "";
  return fmt::format("<span class=\"key {} {}\">{}</span>\n", kind, colour, escape(name));
}

std::string draw_y_axis(const PlotFrame& frame, Axis& axis, std::string_view label) {
  axis.first = frame.bottom;
  axis.last = frame.top;
  std::string out = svg_text(0, 12, "label", label);
  for (const Tick& tick : axis.ticks) {
    const double y = axis.at(tick.value);
    out += svg_line(frame.left, y, frame.right, y, tick.label.empty() ? "grid minor" : "grid");
    if (!tick.label.empty()) out += svg_text(frame.left - 8, y + 4, "end", tick.label);
  }
  if (!axis.ticks.empty()) return out;
  return out + svg_text((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "middle", "no data");
}

std::string make_figure(const FigureText& text, const PlotFrame& frame, const std::string& marks) {
  std::string note = text.note;
  if (text.dropped > 0)
    note += fmt::format("{}Not shown on the logarithmic scale: {} {} at or below zero.", note.empty() ? "" : " ",
                        text.dropped, text.dropped == 1 ? "value" : "values");
  return fmt::format(
      "<figure{}>\n<h3>{}</h3>\n<p class=\"legend\">{}</p>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n"
      "{}</figure>\n",
      frame.width > PlotFrame{}.width ? " class=\"wide\"" : "", escape(text.title), text.legend, px(frame.width),
      px(frame.bottom + frame.below), escape(text.title), marks,
      note.empty() ? "" : "<p class=\"note\">" + escape(note) + "</p>\n");
}

}  // namespace oktopk
