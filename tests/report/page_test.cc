// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "oktopk/base/error.h"
#include "tests/report/markup_checks.h"
#include "tools/report/plot.h"
#include "tools/report/style.h"

namespace oktopk::page_test {
namespace {

Page full_page(const std::string& text) {
  Page page(text, text);
  page.heading(text);
  page.paragraph(text);
  page.figures({{text, text}, {"12x", "less"}});
  page.table({.head = {text, "b"}, .rows = {{"1", text}, {"2"}, {"3", "4", "5"}}, .caption = text});
  page.plots({to_svg(Plot{.title = text, .series = {{text, {0, 1}, {1, 2}}}}),
              to_svg(Bars{.title = text, .groups = {text}, .sets = {{text, {1}}}})});
  page.code(text);
  return page;
}

TEST(Page, whole_page_is_well_formed_and_holds_its_parts_in_order) {
  const std::string html = full_page("text").html();
  EXPECT_EQ(markup_error(html), "");
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  std::size_t at = 0;
  for (const char* part : {"<h1>text</h1>", "<h2>text</h2>", "<p>text</p>", "<dt>less</dt><dd>12x", "<table>", "<svg",
                           "<pre><code>text</code></pre>"}) {
    const std::size_t found = html.find(part, at);
    ASSERT_NE(found, std::string::npos) << part;
    at = found;
  }
}

TEST(Page, special_characters_in_any_text_are_escaped) {
  const std::string html = full_page("<b>&\"x\"'</b>").html();
  EXPECT_EQ(markup_error(html), "");
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(html.find("&\""), std::string::npos);
}

TEST(Page, empty_parts_are_well_formed) {
  Page page("");
  page.heading("");
  page.figures({});
  page.table({});
  page.plots({});
  page.code("");
  EXPECT_EQ(markup_error(page.html()), "");
}

TEST(Page, nothing_is_loaded_from_elsewhere) {
  std::string html = full_page("text").html();
  const std::string svg_namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
  EXPECT_EQ(count(html, "http://"), count(html, svg_namespace));
  for (const char* part : {"https://", "src=", "href=", "url(", "@import", "<script", "<link"})
    EXPECT_EQ(count(html, part), 0u) << part;
}

TEST(Page, rows_of_a_table_are_as_long_as_the_longest) {
  Page page("T");
  page.table({.head = {"a", "b"}, .rows = {{"1"}, {"2", "3", "4"}, {}}, .highlight = 1});
  const std::string html = page.html();
  EXPECT_EQ(count(html, "<th>"), 3u);
  EXPECT_EQ(count(html, "<td>"), 9u);
  EXPECT_EQ(count(html, "<tr class=\"best\"><td>2</td>"), 1u);
}

TEST(Page, highlight_outside_of_the_table_is_ignored) {
  for (const int highlight : {-1, 1, 99}) {
    Page page("T");
    page.table({.rows = {{"1"}}, .highlight = highlight});
    EXPECT_EQ(count(page.html(), "class=\"best\""), 0u) << highlight;
  }
}

TEST(Page, same_calls_give_same_bytes) { EXPECT_EQ(full_page("text").html(), full_page("text").html()); }

TEST(Page, style_has_every_colour_for_light_and_dark) {
  const std::string style(page_style());
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
  const Page page = full_page("text");
  write_page(file.string(), page);
  std::ostringstream read;
  read << std::ifstream(file, std::ios::binary).rdbuf();
  std::filesystem::remove(file);
  EXPECT_EQ(read.str(), page.html());
}

TEST(Page, file_that_cannot_be_written_is_a_usage_error) {
  const std::string file = "/nowhere/at/all/report.html";
  try {
    write_page(file, Page("T"));
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(file), std::string::npos);
  }
}

}  // namespace
}  // namespace oktopk::page_test
