// SPDX-License-Identifier: Apache-2.0
#include "tools/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

using nlohmann::json;

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

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) continue;
    constexpr std::string_view kSpecial = "&<>\"'";
    constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    const std::size_t special = kSpecial.find(c);
    if (special == std::string_view::npos)
      out += c;
    else
      out += kNames[special];
  }
  return out;
}

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

// The policy forbids what the page does not do anyway: load anything, run anything.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
)";

// Plots name classes only; the palette (c0 to c8, kColours of them) and every other colour stand here, once for light
// and once for dark. The palette is that of Okabe and Ito (black as grey, yellow darkened to be seen on white), with
// brown as the ninth, and brightened for dark screens.
constexpr std::string_view kPageStyle = R"css(:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5c6675; --rule: #dfe3e9;
  --grid: #e3e7ec; --minor: #f0f2f5; --axis: #8a94a3; --tint: #eaf3fa;
  --p0: #0072b2; --p1: #d55e00; --p2: #009e73; --p3: #cc79a7; --p4: #e69f00;
  --p5: #56b4e9; --p6: #5a6270; --p7: #4b2fc0; --p8: #8c4a2f;
}
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1a2029; --ink: #e6eaf0; --muted: #9ba6b5; --rule: #2c3541;
  --grid: #2b333e; --minor: #212832; --axis: #6d7888; --tint: #1d3345;
  --p0: #4aa3e8; --p1: #f0803c; --p2: #2fc79a; --p3: #e29bc4; --p4: #f2b843;
  --p5: #a5dbfa; --p6: #f0f0a8; --p7: #7860f0; --p8: #c98d72;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1168px; margin: 0 auto; padding: 40px 24px 64px; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 18px; margin-bottom: 24px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; } h2 { font-size: 20px; line-height: 1.3; margin: 40px 0 12px; }
h3 { font-size: 15px; line-height: 1.3; margin: 0 0 4px; } h1, h2, h3, p, dd, dt { overflow-wrap: anywhere; }
p { max-width: 84ch; margin: 0 0 14px; } header p { font-size: 17px; margin: 8px 0 0; max-width: none; }
header p, caption, dt, th, .note { color: var(--muted); }
figure, .numbers div, .table, pre { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.numbers, .table, .plots, pre { margin: 0 0 24px; }
.numbers, .plots { display: grid; gap: 20px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 168px), 1fr)); }
.numbers div { display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 14px 18px; }
dd { margin: 0; font-size: 28px; font-weight: 650; line-height: 1.2; } dt { font-size: 14px; line-height: 1.4; }
.plots { grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; padding: 16px 18px 12px; min-width: 0; }
figure.wide { grid-column: 1 / -1; overflow-x: auto; } figure.wide svg { min-width: 860px; }
.legend { font-size: 13px; margin: 0 0 8px; max-width: none; } .note { font-size: 12px; margin: 6px 0 0; }
.key { display: inline-block; margin-right: 14px; }
.key::before { content: ""; display: inline-block; width: 16px; margin-right: 6px; vertical-align: 4px;
  border-top: 2px solid var(--c, var(--ink)); }
.key.dashed::before, .key.reference::before { border-top-style: dashed; }
.key.box::before, .key.dots::before { width: 9px; height: 9px; border: 0; vertical-align: 0; background: var(--c); }
.key.dots::before { border-radius: 50%; }
.table, pre { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; line-height: 1.4; }
table, dd, svg text { font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; font-size: 14px; padding: 12px 18px 6px; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; } th { font-weight: 600; font-size: 13px; }
td { border-top: 1px solid var(--rule); } td.strong { background: var(--tint); font-weight: 650; }
th:first-child, td:first-child { text-align: left; padding-left: 18px; }
pre { padding: 14px 18px; line-height: 1.5; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg text { fill: var(--muted); font-size: 12px; } svg .number { fill: var(--ink); font-size: 11px; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
.grid { stroke: var(--grid); } .minor { stroke: var(--minor); } .axis { stroke: var(--axis); }
svg .reference { stroke: var(--ink); stroke-width: 1.25; stroke-dasharray: 5 4; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.dashed { stroke-dasharray: 6 5; } .bar { fill: var(--c); } .dot { fill: var(--c); stroke: var(--card); }
.c0 { --c: var(--p0); } .c1 { --c: var(--p1); } .c2 { --c: var(--p2); } .c3 { --c: var(--p3); } .c4 { --c: var(--p4); }
.c5 { --c: var(--p5); } .c6 { --c: var(--p6); } .c7 { --c: var(--p7); } .c8 { --c: var(--p8); }
@media print {
  :root { --paper: #ffffff; } body { font-size: 13px; } main { max-width: none; padding: 0; }
  table { font-size: 11px; } th, td { padding: 4px 6px; white-space: normal; }
  .plots { grid-template-columns: 1fr 1fr; } .table, pre, figure.wide { overflow: visible; }
  figure.wide svg { min-width: 0; } pre { white-space: pre-wrap; }
  figure, .numbers div, tr, pre { break-inside: avoid; } h2 { break-after: avoid; }
  .key::before, svg, td { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

std::string numbers_of(const json& part) {
  std::string out;
  for (const auto& [number, meaning] : part.get<std::vector<std::pair<std::string, std::string>>>())
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(meaning), escape(number));
  return out.empty() ? out : "<dl class=\"numbers\">\n" + out + "</dl>\n";
}

std::string table_of(const Table& table) {
  std::size_t columns = table.head.size();
  for (const auto& row : table.rows) columns = std::max(columns, row.size());
  const auto row_of = [&](const std::vector<std::string>& cells, std::string_view tag, int row) {
    std::string out = "<tr>";
    for (std::size_t c = 0; c < columns; ++c) {
      const bool strong = std::ranges::any_of(
          table.strong, [&](const auto& s) { return s[0] == row && (s[1] < 0 || s[1] == static_cast<int>(c)); });
      out += fmt::format("<{0}{1}>{2}</{0}>", tag, strong ? " class=\"strong\"" : "",
                         c < cells.size() ? escape(cells[c]) : "");
    }
    return out + "</tr>\n";
  };
  std::string out = "<div class=\"table\"><table>\n";
  if (!table.caption.empty()) out += fmt::format("<caption>{}</caption>\n", escape(table.caption));
  if (!table.head.empty()) out += "<thead>\n" + row_of(table.head, "th", -1) + "</thead>\n";
  out += "<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) out += row_of(table.rows[r], "td", static_cast<int>(r));
  return out + "</tbody>\n</table></div>\n";
}

std::string plots_of(const json& plots, const FigureOf& figure_of) {
  if (plots.empty()) return "";
  std::string out = "<div class=\"plots\">\n";
  for (const json& plot : plots) out += figure_of(plot);
  return out + "</div>\n";
}

std::string part_of(const json& part, const FigureOf& figure_of) {
  require(part.is_object() && part.size() == 1, "a part of a document must be an object with one field, not ",
          part.dump());
  const std::string kind = part.begin().key();
  const json& value = part.at(kind);
  if (kind == "heading") return fmt::format("<h2>{}</h2>\n", escape(value.get<std::string>()));
  if (kind == "text") return fmt::format("<p>{}</p>\n", escape(value.get<std::string>()));
  if (kind == "code") return fmt::format("<pre><code>{}</code></pre>\n", escape(value.get<std::string>()));
  if (kind == "numbers") return numbers_of(value);
  if (kind == "table") return table_of(value.get<Table>());
  if (kind == "plots") return plots_of(value, figure_of);
  fail<UsageError>("unknown part '", kind, "' of a document; there are: heading, text, code, numbers, table, plots");
}

}  // namespace

std::string to_figure(const Plot& plot) { return LinePlot(plot).figure(); }

std::string to_text(const Table& table, const std::string& head, const std::string& row) {
  std::vector<std::vector<std::string>> lines = table.rows;
  lines.insert(lines.begin(), table.head);
  std::string out;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    out += r == 0 ? head : row;
    for (std::size_t c = 0; c < lines[r].size(); ++c) {
      std::size_t width = 0;
      for (const auto& line : lines) width = std::max(width, c < line.size() ? line[c].size() : 0);
      out += c == 0 ? fmt::format("{:<{}}", lines[r][c], width) : fmt::format("  {:>{}}", lines[r][c], width);
    }
    out += "\n";
  }
  return out;
}

std::string line_figure(const json& plot) { return to_figure(plot.get<Plot>()); }

std::string to_html(const json& document, const FigureOf& figure_of) {
  const std::string title = escape(document.at("title").get<std::string>());
  const std::string lead = escape(document.value("lead", ""));
  std::string out(kHead);
  out += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n", title, kPageStyle);
  out += fmt::format("<header>\n<h1>{}</h1>\n{}</header>\n", title, lead.empty() ? "" : "<p>" + lead + "</p>\n");
  for (const json& part : document.at("parts")) out += part_of(part, figure_of);
  return out + "</main>\n</body>\n</html>\n";
}

void write_page(const std::string& file, const json& document, const FigureOf& figure_of) {
  std::ofstream out(file, std::ios::binary);
  out << to_html(document, figure_of);
  out.close();
  require(out.good(), "cannot write ", file);
}

}  // namespace oktopk
