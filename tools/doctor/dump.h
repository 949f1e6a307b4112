// SPDX-License-Identifier: Apache-2.0
// Dumps of flight recorders (oktopk/comm/flight.h), read and checked: a dump is somebody's file, and may be damaged.
#pragma once

#include <cstdint>
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

}  // namespace oktopk
