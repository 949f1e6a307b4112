// SPDX-License-Identifier: Apache-2.0
// A study that takes milliseconds, on threads.
#pragma once

#include <string>

#include "lab/study/study.h"
#include "tests/support/world.h"

namespace oktopk {

inline StudyTask small_task(int P, Index n, int steps, double density, const std::string& data) {
  return {.run_ranks = [](int ranks, const auto& body) { run_world("threads", ranks, body); },
          .n = n,
          .densities = {density},
          .ranks = {P},
          .steps = steps,
          .seeds = 2,
          .data = {data}};
}

// The row whose field has the value.
inline const nlohmann::json& row_with(const Findings& findings, const std::string& key, const std::string& value) {
  for (const auto& row : findings.rows)
    if (row.value(key, "") == value) return row;
  throw std::out_of_range(key + " = " + value);
}

}  // namespace oktopk
