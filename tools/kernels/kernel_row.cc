// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/kernel_row.h"

#include <algorithm>
#include <sstream>

namespace oktopk {

std::string_view unit_of(Measure measure) {
  switch (measure) {
    case Measure::nanoseconds:
      return "ns";
    case Measure::bits:
      return "bits";
    case Measure::ratio:
      break;
  }
  return "x";
}

double KernelRow::value(Measure measure) const {
  switch (measure) {
    case Measure::nanoseconds:
      return nanoseconds();
    case Measure::bits:
      return bits;
    case Measure::ratio:
      break;
  }
  return times.ratio();
}

std::string KernelRow::verdict() const {
  if (reach.empty()) return {};
  std::ostringstream text;
  for (const Reach& r : reach) text << (&r == reach.data() ? "" : ", ") << r.most << ' ' << unit_of(r.measure);
  const bool all = std::all_of(reach.begin(), reach.end(), [&](const Reach& r) { return meets(r); });
  text << (all ? " ok" : " over");
  return text.str();
}

}  // namespace oktopk
