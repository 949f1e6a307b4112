// SPDX-License-Identifier: Apache-2.0
// One row of `oktopk kernels`: a kernel, its limit, and how far it should reach.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oktopk/base/simd.h"
#include "tools/kernels/timing.h"

namespace oktopk {

enum class Measure { ratio, nanoseconds, bits };
std::string_view unit_of(Measure measure);  // "x", "ns", "bits"

// At most `most`.
struct Reach {
  Measure measure = Measure::ratio;
  double most = 0;
};

struct KernelRow {
  std::string kernel;
  std::string data;
  SimdLevel simd = SimdLevel::scalar;
  double n = 0;
  double k = 0;
  double bytes = 0;             // that have to be moved
  double entries = 0;           // > 0 where the time per entry is the measure
  double bits = 0;              // > 0: size of the code, per entry
  std::string_view limit = "";  // read, copy, axpy
  std::vector<Reach> reach = {};
  TimedPair times = {};

  double nanoseconds() const { return entries > 0 ? 1e9 * times.kernel.median / entries : 0; }
  double bandwidth() const { return times.kernel.median > 0 ? bytes / times.kernel.median : 0; }  // bytes/s
  double value(Measure measure) const;
  bool meets(const Reach& r) const { return value(r.measure) <= r.most; }
  // "1.10 x ok", "10.1 bits, 0.2 ns over"; empty where nothing is asked.
  std::string verdict() const;
};

}  // namespace oktopk
