// SPDX-License-Identifier: Apache-2.0
// A row of `oktopk-lab kernels`, of the CPU's kernels (kernel_bench.h) and of a GPU's (gpu_bench.h): a kernel, its
// limit, and the numbers that it should keep to.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "lab/kernels/timing.h"

namespace oktopk {

// A kernel to time.
struct KernelRow {
  std::string kernel;
  double bytes = 0;             // that have to be moved
  double entries = 0;           // > 0 where the time per entry is the measure
  double bits = 0;              // > 0: size of the code, per entry
  std::string_view limit = "";  // read, copy, set, axpy, or their sum
};

// A number to reach, for n >= 2^24: caches and branch predictors know few entries by heart.
struct Goal {
  std::string_view kernel;  // its name, or all of it before a verb or a number of ranks
  std::string_view unit;    // x (of the limit), ns (per entry) or bits (per entry)
  double most;
  double density = 0;  // 0: any; otherwise 1%, or 0.1% and less
};

// The problem that a row is about.
struct KernelProblem {
  std::string_view where;  // the SIMD level, or cuda
  std::string_view data;
  double n = 0;
  double k = 0;
};

// Times are in seconds (Times), "bandwidth" in bytes/s. "reach" lists the goals that apply: {"unit": x, ns or bits,
// "most": ..., "value": ..., "met": ...}.
nlohmann::json row_json(const KernelRow& row, const TimedPair& times, const KernelProblem& problem,
                        std::span<const Goal> goals);

using RowReport = std::function<void(const nlohmann::json& row)>;

}  // namespace oktopk
