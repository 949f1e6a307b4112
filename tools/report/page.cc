// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "oktopk/base/error.h"
#include "tools/report/markup.h"
#include "tools/report/style.h"

namespace oktopk {
namespace {

// Forbids by rule what the page does not do anyway: load anything, run anything.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
)";

std::string table_row(const std::vector<std::string>& cells, std::size_t columns, std::string_view tag) {
  std::string out;
  for (std::size_t c = 0; c < columns; ++c)
    out += fmt::format("<{0}>{1}</{0}>", tag, c < cells.size() ? escape(cells[c]) : "");
  return out + "</tr>\n";
}

}  // namespace

Page::Page(std::string title, std::string subtitle) : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void Page::heading(const std::string& text) { body_ += fmt::format("<h2>{}</h2>\n", escape(text)); }

void Page::paragraph(const std::string& text) { body_ += fmt::format("<p>{}</p>\n", escape(text)); }

void Page::figures(const std::vector<std::pair<std::string, std::string>>& numbers) {
  if (numbers.empty()) return;
  body_ += "<dl class=\"figures\">\n";
  for (const auto& [number, label] : numbers)
    body_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(label), escape(number));
  body_ += "</dl>\n";
}

void Page::table(const Table& table) {
  std::size_t columns = table.head.size();
  for (const auto& row : table.rows) columns = std::max(columns, row.size());
  body_ += "<div class=\"table\"><table>\n";
  if (!table.caption.empty()) body_ += fmt::format("<caption>{}</caption>\n", escape(table.caption));
  if (!table.head.empty()) body_ += "<thead>\n<tr>" + table_row(table.head, columns, "th") + "</thead>\n";
  body_ += "<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const bool emphasised = table.highlight >= 0 && r == static_cast<std::size_t>(table.highlight);
    body_ += (emphasised ? "<tr class=\"best\">" : "<tr>") + table_row(table.rows[r], columns, "td");
  }
  body_ += "</tbody>\n</table></div>\n";
}

void Page::plots(const std::vector<std::string>& svgs) {
  if (svgs.empty()) return;
  body_ += "<div class=\"plots\">\n";
  for (const std::string& svg : svgs) body_ += "<figure>\n" + svg + "</figure>\n";
  body_ += "</div>\n";
}

void Page::code(const std::string& text) { body_ += fmt::format("<pre><code>{}</code></pre>\n", escape(text)); }

std::string Page::html() const {
  std::string out(kHead);
  out += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n", escape(title_), page_style());
  out += fmt::format("<header>\n<h1>{}</h1>\n", escape(title_));
  if (!subtitle_.empty()) out += fmt::format("<p>{}</p>\n", escape(subtitle_));
  return out + "</header>\n" + body_ + "</main>\n</body>\n</html>\n";
}

void write_page(const std::string& file, const Page& page) {
  std::ofstream out(file, std::ios::binary);
  out << page.html();
  out.close();
  require(out.good(), "cannot write ", file);
}

}  // namespace oktopk
