// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "oktopk/base/error.h"
#include "tools/report/document.h"
#include "tools/report/drawing.h"

namespace oktopk {
namespace {

using nlohmann::json;

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

std::string plots_of(const json& plots) {
  if (plots.empty()) return "";
  std::string out = "<div class=\"plots\">\n";
  for (const json& plot : plots)
    out += plot.contains("groups") ? to_figure(plot.get<Bars>()) : to_figure(plot.get<Plot>());
  return out + "</div>\n";
}

std::string part_of(const json& part) {
  require(part.is_object() && part.size() == 1, "a part of a document must be an object with one field, not ",
          part.dump());
  const std::string kind = part.begin().key();
  const json& value = part.at(kind);
  if (kind == "heading") return fmt::format("<h2>{}</h2>\n", escape(value.get<std::string>()));
  if (kind == "text") return fmt::format("<p>{}</p>\n", escape(value.get<std::string>()));
  if (kind == "code") return fmt::format("<pre><code>{}</code></pre>\n", escape(value.get<std::string>()));
  if (kind == "numbers") return numbers_of(value);
  if (kind == "table") return table_of(value.get<Table>());
  if (kind == "plots") return plots_of(value);
  fail<UsageError>("unknown part '", kind, "' of a document; there are: heading, text, code, numbers, table, plots");
}

}  // namespace

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

std::string to_html(const json& document) {
  const std::string title = escape(document.at("title").get<std::string>());
  const std::string lead = escape(document.value("lead", ""));
  std::string out(kHead);
  out += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n", title, kPageStyle);
  out += fmt::format("<header>\n<h1>{}</h1>\n{}</header>\n", title, lead.empty() ? "" : "<p>" + lead + "</p>\n");
  for (const json& part : document.at("parts")) out += part_of(part);
  return out + "</main>\n</body>\n</html>\n";
}

void write_page(const std::string& file, const json& document) {
  std::ofstream out(file, std::ios::binary);
  out << to_html(document);
  out.close();
  require(out.good(), "cannot write ", file);
}

}  // namespace oktopk
