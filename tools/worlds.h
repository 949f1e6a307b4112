// SPDX-License-Identifier: Apache-2.0
// Where a subcommand runs: on P threads of this process, or on the processes that mpirun or `oktopk run` started. One
// body serves both; only the root of the whole command prints.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transports.h"
#include "oktopk/trace/trace.h"
#include "tools/options.h"

namespace oktopk {

// --flight DIR: dumps of the flight recorders of this process, DIR/oktopk-flight-RANK.json. They are written when a
// rank fails, and at each signal SIGUSR1, for `oktopk doctor` (docs/observability.md).
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

struct Station {
  Communicator& comm;
  // A communicator of the same ranks in a fresh world with a short timeout: tests of faults ruin it. Collective.
  std::function<std::unique_ptr<Communicator>()> make_doomed;
};

class Worlds {
 public:
  // UsageError when the build lacks the transport, or options are wrong. in_place: as in MpiOptions.
  explicit Worlds(const TransportOptions& options, bool in_place = false);

  int default_size() const;  // 4 threads, or all processes
  bool is_root() const;      // whether this process prints; always true with threads
  bool has_processes() const { return world_ != nullptr; }

  // Dumps the ranks of later runs; null: none. REQUIRES: it outlives them.
  void watch(FlightFiles* flight) { flight_ = flight; }

  // Runs `body` on P ranks. With processes, P may be smaller than the number of processes; the others wait.
  void run(int P, const std::function<void(Station&)>& body);

 private:
  void run_on_threads(int P, const std::function<void(Station&)>& body);
  void run_on_processes(int P, const std::function<void(Station&)>& body);
  std::unique_ptr<Communicator> make_doomed_processes();

  FlightFiles* flight_ = nullptr;
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<TcpOptions> tcp_;      // of transport tcp
  std::unique_ptr<Communicator> world_;  // of all processes
};

// The transport, and --ranks.
struct WorldOptions : TransportOptions {
  std::string ranks;  // with commas; empty: Worlds::default_size()

  void add_to(CLI::App& sub);
  std::vector<int> sizes(const Worlds& worlds) const;  // checked
};

// --trace FILE: the events of all ranks in one file, for ui.perfetto.dev (docs/observability.md). Threads share one
// trace; processes have one each, gathered at the end.
class TraceFile {
 public:
  static void add_option(CLI::App& sub, std::string& file);

  // An empty name: no trace. UsageError if the file cannot be written.
  TraceFile(std::string file, const Worlds& worlds);

  Trace* trace() { return file_.empty() ? nullptr : &trace_; }
  // Collective over the processes: gathers the events of ranks 0 ... P-1, writes the file and prints a line about it.
  void write(Worlds& worlds, int P);

 private:
  std::string file_;
  Trace trace_;
};

}  // namespace oktopk
