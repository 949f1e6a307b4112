// SPDX-License-Identifier: Apache-2.0
#include "tools/status_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace oktopk {

StatusLine::StatusLine(bool is_shown)
    : is_shown_(is_shown && isatty(fileno(stdout)) == 1 && isatty(fileno(stderr)) == 1) {}

void StatusLine::show(const std::string& text) {
  if (!is_shown_) return;
  fmt::print(stderr, "\r\x1b[2K{}", text);
  std::fflush(stderr);
  is_dirty_ = true;
}

void StatusLine::clear() {
  if (!is_dirty_) return;
  std::fflush(stdout);
  fmt::print(stderr, "\r\x1b[2K");
  std::fflush(stderr);
  is_dirty_ = false;
}

}  // namespace oktopk
