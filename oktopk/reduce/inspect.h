// SPDX-License-Identifier: Apache-2.0
// What makes a rank's input unfit for a step, in words; for whoever looks at a gradient before it
// is added, and for whoever finds out later.
#pragma once

#include <array>
#include <charconv>
#include <string>

#include "oktopk/device/device.h"
#include "oktopk/reduce/notes.h"

namespace oktopk {

// The fewest digits that give the same number again, whatever the locale.
template <class T>
std::string digits(T x) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x).ptr;
  return {text.data(), end};
}

// Why the accumulator is not finite at i.
std::string describe_nonfinite(Gradient gradient, std::size_t i);

// What is wrong with scale * gradient for a residual of n values. An empty gradient is fine.
Note inspect_size(Gradient gradient, float scale, std::size_t n);
// The same, and a pass over the gradient: skippable when an entry is not finite.
Note inspect_values(const Device& device, Gradient gradient, float scale, std::size_t n);

}  // namespace oktopk
