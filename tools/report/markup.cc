// SPDX-License-Identifier: Apache-2.0
#include "tools/report/markup.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

namespace oktopk {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// In units of the font size.
double character_width(char c) {
  constexpr std::string_view kNarrow = " .,:;!|'`()[]{}ijlftrI/\\-";
  constexpr std::string_view kBroad = "mwMW@%";
  if (continues_character(c)) return 0;
  if (kNarrow.find(c) != std::string_view::npos) return 0.34;
  if (kBroad.find(c) != std::string_view::npos) return 0.88;
  return c >= 'A' && c <= 'Z' ? 0.67 : 0.57;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) continue;
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  double width = 0;
  for (const char c : text) width += character_width(c);
  return width * font_size;
}

std::string shorten(std::string_view text, double width, double font_size) {
  if (text_width(text, font_size) <= width) return std::string(text);
  double left = width / font_size - character_width('_');
  std::size_t end = 0;
  for (; end < text.size() && left >= character_width(text[end]); ++end) left -= character_width(text[end]);
  while (end > 0 && continues_character(text[end])) --end;
  return std::string(text.substr(0, end)) + "\u2026";
}

std::vector<std::string> wrap(std::string_view text, double width, double font_size) {
  std::vector<std::string> lines;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    word = shorten(word, width, font_size);
    if (!lines.empty() && text_width(lines.back() + ' ' + word, font_size) <= width)
      lines.back() += ' ' + word;
    else
      lines.push_back(word);
  }
  return lines;
}

std::string px(double length) {
  const double tenths = std::round(length * 10);
  if (std::fmod(tenths, 10) == 0) return fmt::format("{:.0f}", tenths == 0 ? 0.0 : tenths / 10);
  return fmt::format("{:.1f}", tenths / 10);
}

}  // namespace oktopk
