// SPDX-License-Identifier: Apache-2.0
// A stopwatch: lap() gives the seconds since the last lap.
#pragma once

#include <chrono>

namespace oktopk {

class Timer {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace oktopk
