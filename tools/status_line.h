// SPDX-License-Identifier: Apache-2.0
// A line on the terminal that says what a long subcommand is doing. It redraws itself and leaves nothing behind. Where
// stdout or stderr is no terminal, it prints nothing: files and pipes get results only.
#pragma once

#include <string>

namespace oktopk {

class StatusLine {
 public:
  // `is_shown` false: never prints; for ranks other than the root.
  explicit StatusLine(bool is_shown = true);
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void show(const std::string& text);
  // Call it before printing a result: both go to the same terminal.
  void clear();

 private:
  bool is_shown_;
  bool is_dirty_ = false;
};

}  // namespace oktopk
