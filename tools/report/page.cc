// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "oktopk/base/error.h"
#include "tools/report/document.h"
#include "tools/report/drawing.h"
#include "tools/report/style.h"

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
