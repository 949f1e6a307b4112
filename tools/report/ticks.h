// SPDX-License-Identifier: Apache-2.0
// Where an axis is marked, and with which words: steps of 1, 2 or 5 times a power of ten; decades
// on a logarithmic axis, with lines for what lies between. Numbers are short: 500, 2.5k, 10M, 0.05,
// 2e-5.
#pragma once

#include <string>
#include <vector>

namespace oktopk {

struct Tick {
  double value = 0;
  std::string label;  // empty: a minor line
};

// At most `digits` significant ones, no trailing zeros, a suffix k, M, G, T, P, E from 1000 on.
std::string format_value(double value, int digits = 4);

// The smallest of 1, 2, 5 times a power of ten that makes at most `target` steps of the span.
// REQUIRES: span is finite and > 0.
double nice_step(double span, int target);

// The multiples of `step` within [lo, hi]. REQUIRES: lo < hi, step > 0.
std::vector<Tick> linear_ticks(double lo, double hi, double step);

// REQUIRES: 0 < lo < hi.
std::vector<Tick> log_ticks(double lo, double hi);

}  // namespace oktopk
