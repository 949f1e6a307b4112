// SPDX-License-Identifier: Apache-2.0
#include "tools/report/markup.h"

#include <gtest/gtest.h>

#include "tests/report/markup_checks.h"

namespace oktopk::markup_test {
namespace {

TEST(Markup, escape_of_special_characters_is_harmless) {
  EXPECT_EQ(escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape("plain, \xC3\xA9\n\t"), "plain, \xC3\xA9\n\t");
}

TEST(Markup, escape_of_control_characters_leaves_them_out) {
  EXPECT_EQ(escape(std::string("a\0b\x1B[1mc\x7F", 9)), "ab[1mc");
}

TEST(Markup, width_grows_with_text_and_size) {
  EXPECT_LT(text_width("ill", 12), text_width("www", 12));
  EXPECT_DOUBLE_EQ(text_width("abc", 24), 2 * text_width("abc", 12));
  EXPECT_DOUBLE_EQ(text_width("\xC3\xA9", 12), text_width("e", 12));
}

TEST(Markup, shorten_fits_and_keeps_characters_whole) {
  EXPECT_EQ(shorten("short", 100, 12), "short");
  const std::string text = "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9";
  for (double width = 0; width < 60; width += 1.7) {
    const std::string cut = shorten(text, width, 12);
    EXPECT_EQ(count(cut, "\xC3"), count(cut, "\xA9")) << width;
    EXPECT_LE(text_width(cut, 12), std::max(width, 12.0)) << width;
  }
}

TEST(Markup, wrap_breaks_at_spaces_and_loses_nothing) {
  const std::string text = "one two three four five six seven eight nine ten";
  const auto lines = wrap(text, 80, 12);
  EXPECT_GT(lines.size(), 2u);
  std::string joined;
  for (const std::string& line : lines) {
    EXPECT_LE(text_width(line, 12), 80);
    joined += (joined.empty() ? "" : " ") + line;
  }
  EXPECT_EQ(joined, text);
  EXPECT_TRUE(wrap("", 80, 12).empty());
}

TEST(Markup, px_has_one_decimal_and_no_negative_zero) {
  EXPECT_EQ(px(12), "12");
  EXPECT_EQ(px(12.34), "12.3");
  EXPECT_EQ(px(-0.01), "0");
  EXPECT_EQ(px(-3.96), "-4");
}

TEST(MarkupChecks, checker_sees_what_is_wrong) {
  EXPECT_EQ(markup_error("<a b=\"c\"><d/>e</a>"), "");
  for (const char* bad : {"<a>", "</a>", "<a><b></a></b>", "<a b=c></a>", "<a", "a < b <c></c>"})
    EXPECT_NE(markup_error(bad), "") << bad;
}

}  // namespace
}  // namespace oktopk::markup_test
