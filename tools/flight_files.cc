// SPDX-License-Identifier: Apache-2.0
#include "tools/flight_files.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

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

}  // namespace oktopk
