// SPDX-License-Identifier: Apache-2.0
// Dumps of flight recorders (oktopk/comm/flight.h), read and checked (a dump is somebody's file, and may be damaged),
// and their comparison: who waits for whom, which ranks did different things, who failed first. Messages are matched by
// communicator, sender, receiver and ordinal, not by time: clocks of different hosts differ. Dumps need not be of one
// moment, nor of all ranks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oktopk/comm/flight.h"

namespace oktopk {

struct Dump {
  std::string file;
  std::string library, host, transport;
  int wire = 0;
  int rank = 0, size = 0;
  std::int64_t pid = 0;
  FlightSnapshot flight;

  const FlightLine* find(const std::string& communicator) const;
  double seconds_before(std::int64_t time) const { return 1e-9 * static_cast<double>(flight.now - time); }
};

// UsageError, which names the file and the fault, unless it is a whole dump of a format that we know.
Dump parse_dump(const std::string& text, const std::string& file);
Dump read_dump(const std::string& file);

// By rank. UsageError when there are none, or when two are of one rank or of worlds of different sizes.
std::vector<Dump> of_one_run(std::vector<Dump> dumps);
// The dumps of one run: files, and folders with files oktopk-flight-*.json.
std::vector<Dump> read_dumps(const std::vector<std::string>& paths);

struct Diagnosis {
  bool is_fine = true;
  std::vector<std::string> findings;  // in plain words, the most important first
  nlohmann::json ranks;               // one row per rank

  nlohmann::json json() const;
};

// stall: an operation that runs for fewer seconds is no trouble by itself. REQUIRES: dumps as from read_dumps().
Diagnosis diagnose(const std::vector<Dump>& dumps, double stall);

// "rank 3", "ranks 0, 1 and 3"; of many, the first and the number of the others.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace oktopk
