// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk simulate` as text and as JSON. Nothing in them depends on the machine that
// simulates: the same command prints the same bytes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/tune/cost.h"
#include "tools/simulate/spec.h"

namespace oktopk {

struct SimulateTableRow {
  SimulatedRow row;
  Method method;
  double predicted = 0;      // seconds of a steady step by the cost model
  double dense_seconds = 0;  // 0: dense was not simulated

  double words_per_k() const { return row.k > 0 ? row.bytes / 4 / row.k : 0; }
  // Relative to the lower bound of Ok-Topk's paper, 2k(P-1)/P words. 0 for one rank.
  double over_bound() const;
};

void print_simulate_head();
void print_simulate_row(const SimulateTableRow& row);
nlohmann::json to_json(const SimulateTableRow& row);

}  // namespace oktopk
