// SPDX-License-Identifier: Apache-2.0
// The comparison of the dumps of all ranks: who waits for whom, which ranks did different things, who failed first.
// Messages are matched by communicator, sender, receiver and ordinal (oktopk/comm/flight.h), not by time: clocks of
// different hosts differ. Dumps need not be of one moment, nor of all ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/doctor/dump.h"

namespace oktopk {

// A rank that waits for another one.
struct Wait {
  int waiter = 0;
  int missing = 0;
  double seconds = 0;
  std::string operation;  // in words
};

struct Diagnosis {
  bool is_fine = true;
  std::vector<std::string> findings;  // in plain words, the most important first
  std::vector<Wait> waits;
  nlohmann::json ranks;  // one row per rank

  nlohmann::json json() const;
};

// stall: an operation that runs for fewer seconds is no trouble by itself. REQUIRES: dumps as from read_dumps().
Diagnosis diagnose(const std::vector<Dump>& dumps, double stall);

// "rank 3", "ranks 0, 1 and 3"; of many, the first and the number of the others.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace oktopk
