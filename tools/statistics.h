// SPDX-License-Identifier: Apache-2.0
// A stopwatch, and what many measurements come down to.
#pragma once

#include <chrono>
#include <span>
#include <vector>

namespace oktopk {

// A stopwatch: lap() gives the seconds since the last lap.
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

double mean_of(std::span<const double> values);  // 0 if there are none
double max_of(std::span<const double> values);   // 0 if there are none

// The q-quantile, 0 <= q <= 1, linear between the sorted values; 0 if there are none.
double quantile(std::vector<double> values, double q);

struct Times {
  double median = 0;
  double least = 0;
  double deviation = 0;  // median of |time - median|: the noise of a repetition
};
Times summarise(const std::vector<double>& seconds);

}  // namespace oktopk
