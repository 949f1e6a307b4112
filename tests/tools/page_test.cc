// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "oktopk/base/error.h"
#include "tests/tools/markup_checks.h"
#include "tools/page.h"

namespace oktopk::page_test {
namespace {

using nlohmann::json;

json with_parts(const json& parts) { return {{"title", "T"}, {"parts", parts}}; }

json full_document(const std::string& text) {
  return {{"title", text},
          {"lead", text},
          {"parts",
           {{{"heading", text}},
            {{"text", text}},
            {{"numbers", json::array({json::array({text, text}), json::array({"12x", "less"})})}},
            {{"table", Table{.head = {text, "b"}, .rows = {{"1", text}, {"2"}, {"3", "4", "5"}}, .caption = text}}},
            {{"plots",
              {Plot{.title = text, .series = {{text, {0, 1}, {1, 2}}}},
               Plot{.title = text, .series = {{.name = text, .x = {0}, .y = {1}, .dots = true}}}}}},
            {{"code", text}}}}};
}

TEST(Page, whole_page_is_well_formed_and_holds_its_parts_in_order) {
  const std::string html = to_html(full_document("text"));
  EXPECT_EQ(markup_error(html), "");
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  std::size_t at = 0;
  for (const char* part : {"<h1>text</h1>", "<h2>text</h2>", "<p>text</p>", "<dt>less</dt><dd>12x", "<table>", "<svg",
                           "<circle class=\"dot\"", "<pre><code>text</code></pre>"}) {
    const std::size_t found = html.find(part, at);
    ASSERT_NE(found, std::string::npos) << part;
    at = found;
  }
}

TEST(Page, document_as_text_gives_the_same_page) {
  const json document = full_document("text");
  EXPECT_EQ(to_html(json::parse(document.dump())), to_html(document));
}

TEST(Page, special_characters_in_any_text_are_escaped) {
  const std::string html = to_html(full_document("<b>&\"x\"'</b>"));
  EXPECT_EQ(markup_error(html), "");
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(html.find("&\""), std::string::npos);
}

TEST(Page, empty_parts_are_well_formed) {
  const json none = json::array();
  const json parts = {{{"heading", ""}}, {{"numbers", none}}, {{"table", Table{}}}, {{"plots", none}}, {{"code", ""}}};
  EXPECT_EQ(markup_error(to_html(with_parts(parts))), "");
}

TEST(Page, nothing_is_loaded_from_elsewhere) {
  const std::string html = to_html(full_document("text"));
  EXPECT_EQ(count(html, "http://"), count(html, "xmlns=\"http://www.w3.org/2000/svg\""));
  for (const char* part : {"https://", "src=", "href=", "url(", "@import", "<script", "<link"})
    EXPECT_EQ(count(html, part), 0u) << part;
}

TEST(Page, rows_of_a_table_are_as_long_as_the_longest) {
  const Table table{.head = {"a", "b"}, .rows = {{"1"}, {"2", "3", "4"}, {}}, .strong = {{1, -1}, {0, 0}, {7, 7}}};
  const std::string html = to_html(with_parts({{{"table", table}}}));
  EXPECT_EQ(count(html, "<th>"), 3u);
  EXPECT_EQ(count(html, "<td"), 9u);
  EXPECT_EQ(count(html, "<td class=\"strong\">"), 4u);
  EXPECT_EQ(count(html, "<td class=\"strong\">1</td><td></td>"), 1u);
}

TEST(Page, what_is_no_document_is_refused) {
  EXPECT_THROW(to_html(json{{"parts", json::array()}}), json::exception);
  EXPECT_THROW(to_html(json{{"title", "T"}}), json::exception);
  EXPECT_THROW(to_html(with_parts({{{"picture", "x"}}})), UsageError);
  EXPECT_THROW(to_html(with_parts({"text"})), UsageError);
  EXPECT_THROW(to_html(with_parts({{{"plots", {{{"series", {{{"x", "no numbers"}}}}}}}}})), json::exception);
}

TEST(Page, style_has_every_colour_for_light_and_dark) {
  const std::string page = to_html({{"title", "t"}, {"parts", nlohmann::json::array()}});
  const std::string style = page.substr(page.find("<style>"), page.find("</style>") - page.find("<style>"));
  for (int c = 0; c < kColours; ++c) {
    const std::string number = std::to_string(c);
    EXPECT_EQ(count(style, "--p" + number + ": #"), 2u) << c;
    EXPECT_EQ(count(style, ".c" + number + " {"), 1u) << c;
  }
  EXPECT_EQ(count(style, "{"), count(style, "}"));
  EXPECT_EQ(count(style, "@media screen and (prefers-color-scheme: dark)"), 1u);
  EXPECT_EQ(count(style, "@media print"), 1u);
}

TEST(Page, written_file_is_the_page) {
  const auto file = std::filesystem::temp_directory_path() / "oktopk_page_test.html";
  write_page(file.string(), full_document("text"));
  std::ostringstream read;
  read << std::ifstream(file, std::ios::binary).rdbuf();
  std::filesystem::remove(file);
  EXPECT_EQ(read.str(), to_html(full_document("text")));
}

TEST(Page, file_that_cannot_be_written_is_a_usage_error) {
  EXPECT_THROW(write_page("/nowhere/at/all/report.html", full_document("T")), UsageError);
}

TEST(Table, text_has_aligned_columns) {
  const Table table{.head = {"preset", "P"}, .rows = {{"oktopk", "4"}, {"dense", "16"}}};
  EXPECT_EQ(to_text(table, "# ", "  "), "# preset   P\n  oktopk   4\n  dense   16\n");
}

}  // namespace
}  // namespace oktopk::page_test
