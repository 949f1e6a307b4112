// SPDX-License-Identifier: Apache-2.0
// --flight DIR: dumps of the flight recorders of this process, DIR/oktopk-flight-RANK.json. They are written when a
// rank fails, and at each signal SIGUSR1, for `oktopk doctor` (docs/observability.md).
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "oktopk/comm/communicator.h"

namespace oktopk {

class FlightFiles {
 public:
  static void add_option(CLI::App& sub, std::string& folder);

  // An empty folder: no dumps, and SIGUSR1 keeps its meaning. UsageError if the folder cannot be made.
  explicit FlightFiles(std::string folder);
  ~FlightFiles();
  FlightFiles(const FlightFiles&) = delete;
  FlightFiles& operator=(const FlightFiles&) = delete;

  // Dumps this rank from now on. From any thread.
  void watch(Communicator& comm);
  // Notes the error of this rank and dumps all ranks of this process: the others may hang.
  void fail(Communicator& comm, std::string_view error) noexcept;

 private:
  void dump() noexcept;

  std::string folder_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<FlightRecorder>> recorders_;  // by rank
  std::jthread signals_;
};

}  // namespace oktopk
