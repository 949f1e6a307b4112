// SPDX-License-Identifier: Apache-2.0
// Dumps of flight recorders when a signal comes, for oktopk.dump_flight_on_signal(). The handler does what a handler
// may: it writes one byte into a pipe. A thread without Python reads it and writes the files, so that dumps come while
// the interpreter waits inside an exchange, or hangs in other native code. Only one object at a time.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/flight.h"
#include "python/src/gil.h"
#include "python/src/module.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

// A handler has no other place to look. Children of fork() inherit the handler, but not the thread.
std::atomic<int> g_pipe{-1};
std::atomic<pid_t> g_owner{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

constexpr char kDump = 'd', kStop = 's';

void put(int fd, char byte) {
  [[maybe_unused]] const auto written = ::write(fd, &byte, 1);  // a full pipe has a request in it
}

extern "C" void oktopk_request_dump(int /*signal*/) {
  const int error = errno;
  if (g_owner == ::getpid()) put(g_pipe, kDump);
  errno = error;
}

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

SignalDumps::SignalDumps(std::string folder, int signal) : folder_(std::move(folder)), signal_(signal) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail<UsageError>("flight: no pipe can be made: ", std::strerror(errno));
  read_end_ = ends[0];
  write_end_ = ends[1];
  ::fcntl(write_end_, F_SETFL, O_NONBLOCK);
  int nobody = -1;
  const bool is_first = g_pipe.compare_exchange_strong(nobody, write_end_);
  if (is_first) g_owner = ::getpid();
  struct sigaction action {};
  action.sa_handler = oktopk_request_dump;
  action.sa_flags = SA_RESTART;
  if (!is_first || ::sigaction(signal, &action, &before_) != 0) {
    if (is_first) g_pipe = -1;
    ::close(read_end_);
    ::close(write_end_);
    fail<UsageError>("flight: signal ", signal, is_first ? " cannot be handled" : ", but dumps have a signal already");
  }
  thread_ = std::thread([this] { run(); });
}

void SignalDumps::close() noexcept {
  if (!thread_.joinable()) return;
  if (mark_.is_forked()) {  // the thread, and the pipe's other end, are the parent's
    leak(std::move(thread_));
    ::close(read_end_);
    ::close(write_end_);
    return;
  }
  ::sigaction(signal_, &before_, nullptr);
  g_pipe = -1;
  // A pipe that is full holds requests only: the thread makes room.
  ::fcntl(write_end_, F_SETFL, 0);
  put(write_end_, kStop);
  thread_.join();
  ::close(read_end_);
  ::close(write_end_);
}

void SignalDumps::watch(std::shared_ptr<FlightRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  if (recorders_.size() == kMostRecorders) recorders_.pop_front();
  recorders_.push_back(std::move(recorder));
}

void SignalDumps::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    char byte = 0;
    const auto count = ::read(read_end_, &byte, 1);
    if (count == 1 && byte == kStop) return;
    if (count == 1) dump();
  }
}

void SignalDumps::dump() {
  const std::lock_guard lock(mutex_);
  for (const auto& recorder : recorders_) {
    try {
      recorder->write(text_of(folder_, "/oktopk-flight-", recorder->snapshot().communicators.front().rank, ".json"));
    } catch (const std::exception&) {
      // There is nobody to tell; the other ranks' files may still be written.
    }
  }
}

}  // namespace

void bind_signal_dumps(nb::module_& m) {
  nb::class_<SignalDumps>(m, "SignalDumps", "Writes dumps into a folder when a signal comes.")
      .def(nb::init<std::string, int>(), "folder"_a, "signal"_a)
      .def("watch", &SignalDumps::watch, "recorder"_a, nb::call_guard<WithoutGil>())
      .def("close", &SignalDumps::close, nb::call_guard<WithoutGil>(), "The signal has its old meaning.");
}

}  // namespace oktopk::python
