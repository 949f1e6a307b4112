// SPDX-License-Identifier: Apache-2.0
#include "python/src/gil.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "oktopk/base/error.h"

#ifdef __linux__
#include <sys/syscall.h>
#endif

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

// The threads of this process in native code. A child of fork() begins with a new one: the threads are not there.
struct Threads {
  std::mutex mutex;
  std::condition_variable left;
  int inside = 0;  // in a WithoutGil
  int asking = 0;  // for the lock
  bool has_ended = false;
  std::thread::id ended_by;  // this thread ends the interpreter, and may ask

  bool is_over_here() const { return has_ended && ended_by != std::this_thread::get_id(); }
};

Threads* g_threads = new Threads;  // never freed: threads that sleep for ever refer to it

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

// Before the lock is asked for. False: the interpreter may be ending, and this thread must not ask.
bool may_ask(Threads& threads) {
  const std::lock_guard lock(threads.mutex);
  if (threads.is_over_here()) return false;
  ++threads.asking;
  return true;
}

void has_it(Threads& threads, int leaves) {
  const std::lock_guard lock(threads.mutex);
  --threads.asking;
  threads.inside = std::max(0, threads.inside - leaves);  // a child of fork() counts anew, inside of this
  threads.left.notify_all();
}

// With the lock. True: no other thread is in native code. False: those that are will never ask for the lock again.
bool end_native(double seconds) {
  Threads& threads = *g_threads;
  const WithoutGil free;  // whoever asks gets it meanwhile, threads of others included
  std::unique_lock lock(threads.mutex);
  const auto only_me = [&] { return threads.inside == 1 && threads.asking == 0; };
  const bool are_gone = threads.left.wait_for(lock, std::chrono::duration<double>(seconds), only_me);
  threads.has_ended = true;
  threads.ended_by = std::this_thread::get_id();
  threads.left.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return threads.asking == 0; });
  return are_gone;
}

bool is_main_thread() {
#ifdef __linux__
  return ::syscall(SYS_gettid) == ::getpid();
#else
  return true;
#endif
}

}  // namespace

WithoutGil::WithoutGil() {
  {
    Threads& threads = *g_threads;
    const std::lock_guard lock(threads.mutex);
    ++threads.inside;
  }
  thread_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  Threads& threads = *g_threads;
  if (!may_ask(threads)) sleep_for_ever();
  PyEval_RestoreThread(thread_);
  has_it(threads, 1);
}

WithGil::WithGil() {
  Threads& threads = *g_threads;
  if (!may_ask(threads)) fail<CommError>("oktopk: the interpreter is ending");
  state_ = PyGILState_Ensure();
  has_it(threads, 0);
}

bool ends_program(const nb::python_error& error) { return !error.matches(PyExc_Exception); }

void look_for_signals() {
  if (!is_main_thread()) return;
  const WithGil gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_ends(nb::module_& m) {
  m.def("end_native", &end_native, "seconds"_a,
        "At the end of the interpreter: waits until no other thread is in native code of this module. False: some are, "
        "and will stay there.");
  m.def(
      "forget_threads", [] { g_threads = new Threads; }, "In a child of fork(), where there are no other threads.");
}

}  // namespace oktopk::python
