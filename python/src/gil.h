// SPDX-License-Identifier: Apache-2.0
// Python's lock (the GIL) around native code, with an end. While an interpreter ends, CPython before 3.14 answers a
// thread that asks for its lock by pthread_exit(), which unwinds through our frames and aborts at the first one that
// must not throw. So no thread of this module may ask then: end_native() waits until all other threads have left native
// code, for a limited time; whoever leaves it afterwards sleeps for ever instead of asking.
// All code of the module uses these two classes, and none of nanobind's.
#pragma once

#include <nanobind/nanobind.h>

namespace oktopk::python {

// Native code without Python's lock.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_ = nullptr;
};

// Python within native code.
class WithGil {
 public:
  WithGil();  // CommError while the interpreter ends
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Whether it ends the program, and is no Exception of Python: KeyboardInterrupt, SystemExit. With Python's lock.
bool ends_program(const nanobind::python_error& error);

// Throws what a signal handler of Python raises, in the thread that runs them: KeyboardInterrupt. For native code that
// waits without the lock.
void look_for_signals();

void bind_ends(nanobind::module_& m);

}  // namespace oktopk::python
