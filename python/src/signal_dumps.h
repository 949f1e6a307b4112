// SPDX-License-Identifier: Apache-2.0
// Dumps of flight recorders when a signal comes, for oktopk.dump_flight_on_signal(). The handler does what a handler
// may: it writes one byte into a pipe. A thread without Python reads it and writes the files, so that dumps come while
// the interpreter waits inside an exchange, or hangs in other native code. Only one object at a time.
#pragma once

#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "oktopk/base/process_mark.h"
#include "oktopk/comm/flight.h"

namespace oktopk::python {

class SignalDumps {
 public:
  static constexpr std::size_t kMostRecorders = 64;  // the newest

  // UsageError for a signal that cannot be handled, or where another object handles one.
  SignalDumps(std::string folder, int signal);
  ~SignalDumps() { close(); }
  SignalDumps(const SignalDumps&) = delete;
  SignalDumps& operator=(const SignalDumps&) = delete;

  void watch(std::shared_ptr<FlightRecorder> recorder);
  // The signal means what it meant before.
  void close() noexcept;

 private:
  void run();
  void dump();

  const ProcessMark mark_;
  const std::string folder_;
  const int signal_;
  int read_end_ = -1, write_end_ = -1;
  struct sigaction before_ {};
  std::mutex mutex_;  // guards recorders_
  std::deque<std::shared_ptr<FlightRecorder>> recorders_;
  std::thread thread_;
};

}  // namespace oktopk::python
