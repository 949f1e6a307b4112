// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/inspect.h"

#include <cmath>

namespace oktopk {

std::string describe_nonfinite(Gradient gradient, std::size_t i) {
  const std::string at = std::to_string(i);
  if (i < gradient.size() && !std::isfinite(gradient[i]))
    return "gradient[" + at + "] = " + digits(gradient[i]) + ", but all entries must be finite";
  return "the accumulator overflowed at index " + at + ": scale the gradient down";
}

Note inspect_size(Gradient gradient, float scale, std::size_t n) {
  if (!gradient.empty() && gradient.size() != n)
    return {Severity::error,
            "the gradient has " + std::to_string(gradient.size()) + " entries, but n = " + std::to_string(n)};
  if (!std::isfinite(scale)) return {Severity::error, "scale = " + digits(scale) + ", but it must be finite"};
  return {};
}

Note inspect_values(const Device& device, Gradient gradient, float scale, std::size_t n) {
  Note note = inspect_size(gradient, scale, n);
  if (note.severity != Severity::fine) return note;
  const std::size_t bad = device.first_nonfinite(gradient);
  if (bad < gradient.size()) note = {Severity::skippable, describe_nonfinite(gradient, bad)};
  return note;
}

}  // namespace oktopk
