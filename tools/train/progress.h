// SPDX-License-Identifier: Apache-2.0
// Shows how a run goes on: a bar that redraws itself on a terminal, a plain line every tenth of the
// run elsewhere (logs, pipes).
#pragma once

#include <chrono>
#include <string>

#include "tools/train/trainer.h"

namespace oktopk {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  // Leaves the last state of the bar on its own line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const Progress& progress);

 private:
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  int tenths_ = 0;
  std::uint64_t first_step_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace oktopk
