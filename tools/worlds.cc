// SPDX-License-Identifier: Apache-2.0
#include "tools/worlds.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/transports.h"
#include "tools/text.h"

namespace oktopk {
namespace {

constexpr Communicator::Duration kDoomedThreads = std::chrono::milliseconds(500);
constexpr Communicator::Duration kDoomedProcesses = std::chrono::milliseconds(1000);

// A handler may do no more than this; a thread looks at it. Other threads' masks do not matter so, MPI's among them.
volatile std::sig_atomic_t g_dump_requested = 0;

void request_dump(int /*signal*/) { g_dump_requested = 1; }

}  // namespace

void FlightFiles::add_option(CLI::App& sub, std::string& folder) {
  sub.add_option("--flight", folder,
                 "folder for dumps of the last operations of every rank, on errors and on SIGUSR1; see oktopk doctor");
}

FlightFiles::FlightFiles(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  require(!error && std::filesystem::is_directory(folder_), "--flight ", folder_, ": cannot make this folder");
  std::signal(SIGUSR1, request_dump);
  signals_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (g_dump_requested == 0) continue;
      g_dump_requested = 0;
      dump();
    }
  });
}

FlightFiles::~FlightFiles() {
  if (!folder_.empty()) std::signal(SIGUSR1, SIG_DFL);
}

void FlightFiles::watch(Communicator& comm) {
  if (folder_.empty()) return;
  const auto& recorder = comm.flight();
  const int rank = recorder->snapshot().communicators.front().rank;
  const std::lock_guard lock(mutex_);
  recorders_[rank] = recorder;
}

void FlightFiles::fail(Communicator& comm, std::string_view error) noexcept {
  if (folder_.empty()) return;
  comm.flight()->note_error(error);
  dump();
}

void FlightFiles::dump() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, recorder] : recorders_) {
    try {
      recorder->write(fmt::format("{}/oktopk-flight-{}.json", folder_, rank));
    } catch (const std::exception& error) {
      fmt::print(stderr, "oktopk: {}\n", error.what());
    }
  }
}

Worlds::Worlds(const TransportOptions& options, bool in_place) {
  options.check_transport();
  if (options.transport == "threads") return;
  if (options.transport == "tcp") {
    tcp_ = std::make_unique<TcpOptions>(options.tcp());
    world_ = make_tcp_world(*tcp_);
    return;
  }
  require(mpi_available(), "transport mpi: this build has no MPI; install OpenMPI or MPICH and build again");
  session_ = std::make_unique<MpiSession>();
  world_ = make_mpi_world({.in_place = in_place});
}

int Worlds::default_size() const { return world_ ? world_->size() : 4; }

bool Worlds::is_root() const { return !world_ || world_->rank() == 0; }

void Worlds::run(int P, const std::function<void(Station&)>& unwatched) {
  const auto body = [&](Station& station) {
    if (flight_ != nullptr) flight_->watch(station.comm);
    try {
      unwatched(station);
    } catch (const std::exception& error) {
      if (flight_ != nullptr) flight_->fail(station.comm, error.what());
      station.comm.kill();  // the others need not wait for their timeout
      throw;
    }
  };
  if (world_) {
    run_on_processes(P, body);
  } else {
    run_on_threads(P, body);
  }
}

void Worlds::run_on_threads(int P, const std::function<void(Station&)>& body) {
  std::vector<std::unique_ptr<Communicator>> doomed;  // of the last call of make_doomed
  run_threads(P, [&](Communicator& comm) {
    Station station{comm, [&] {
                      barrier(comm);  // every rank has taken its part of the world before
                      if (comm.rank() == 0) doomed = make_thread_world(P, kDoomedThreads);
                      barrier(comm);
                      return std::move(doomed[static_cast<std::size_t>(comm.rank())]);
                    }};
    body(station);
  });
}

// All processes, with a short timeout. Each of these worlds has an epoch of its own.
std::unique_ptr<Communicator> Worlds::make_doomed_processes() {
  if (tcp_ == nullptr) return make_mpi_world({.timeout = kDoomedProcesses});
  ++tcp_->epoch;
  TcpOptions options = *tcp_;
  options.timeout = kDoomedProcesses;
  return make_tcp_world(options);
}

void Worlds::run_on_processes(int P, const std::function<void(Station&)>& body) {
  require(P <= world_->size(), "ranks = ", P, ", but there are ", world_->size(),
          " processes: start more by mpirun or oktopk run");
  const bool takes_part = world_->rank() < P;
  const auto group = world_->split(takes_part ? 0 : 1, world_->rank());
  if (takes_part) {
    Station station{*group, [&] {
                      require(P == world_->size(), "faults need all processes: use ranks = ", world_->size());
                      return make_doomed_processes();
                    }};
    body(station);
  }
  barrier(*world_);
}

void WorldOptions::add_to(CLI::App& sub) {
  sub.add_option("--ranks", ranks, "number of ranks, or several with commas (default: 4, or all processes)");
  add_transport_to(sub);
}

std::vector<int> WorldOptions::sizes(const Worlds& worlds) const {
  return ranks.empty() ? std::vector<int>{worlds.default_size()} : parse_ranks(ranks, "--ranks");
}

void TraceFile::add_option(CLI::App& sub, std::string& file) {
  sub.add_option("--trace", file,
                 "write the events of every rank to this file, for ui.perfetto.dev; slows steps down a little");
}

TraceFile::TraceFile(std::string file, const Worlds& worlds) : file_(std::move(file)) {
  if (worlds.is_root()) check_writable(file_);
}

void TraceFile::write(Worlds& worlds, int P) {
  if (file_.empty()) return;
  if (worlds.has_processes()) worlds.run(P, [&](Station& station) { gather_trace(station.comm, trace_); });
  if (!worlds.is_root()) return;
  trace_.write(file_);
  fmt::print("# trace: {}, {} events", file_, trace_.size());
  if (trace_.dropped() > 0)
    fmt::print(", {} later ones dropped: at most {} fit (fewer steps, sizes or presets)", trace_.dropped(),
               Trace::kMostEvents);
  fmt::print("\n");
}

}  // namespace oktopk
