// SPDX-License-Identifier: Apache-2.0
// How pages look: the style sheet that every page carries. Plots name classes only; the palette
// (c0 to c8, kColours of them) and every other colour live here, once for light and once for dark.
#pragma once

#include <string_view>

namespace oktopk {

std::string_view page_style();

}  // namespace oktopk
