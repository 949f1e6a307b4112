// SPDX-License-Identifier: Apache-2.0
#include "python/src/signal_dumps.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"

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

}  // namespace

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

}  // namespace oktopk::python
