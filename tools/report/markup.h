// SPDX-License-Identifier: Apache-2.0
// Text inside markup: escaped, and measured. There is no font to ask here, so widths are estimates
// for a common sans-serif face, good enough to lay out legends, labels and notes. Lengths are units
// of the viewBox, about one pixel each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oktopk {

// For text and for quoted attributes; control characters that markup cannot hold are left out.
std::string escape(std::string_view text);

double text_width(std::string_view text, double font_size);

// The text, or as much of it as fits with an ellipsis. Never cuts within a UTF-8 character.
std::string shorten(std::string_view text, double width, double font_size);

// The text as lines that fit, broken at spaces; a longer word is shortened.
std::vector<std::string> wrap(std::string_view text, double width, double font_size);

std::string px(double length);  // "12", "12.3": at most one decimal

}  // namespace oktopk
