// SPDX-License-Identifier: Apache-2.0
// The Python module oktopk._core: communicators, Reducer, the tuner and optimiser steps, on numpy
// arrays and anything else that speaks DLPack. The friendly face is python/oktopk/*.py.
#include "python/src/module.h"

#include "oktopk/base/error.h"
#include "python/src/gil.h"
#include "python/src/native_messages.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  // Torch keeps hooks, and with them our objects, beyond the end of the interpreter: nanobind would call that a leak
  // and print a page about it when the script has ended.
  nb::set_leak_warnings(false);
  m.doc() = "Native part of oktopk: communicators, Reducer, tuner.";
  m.attr("version") = OKTOPK_VERSION;
  nb::exception<oktopk::UsageError>(m, "UsageError", PyExc_ValueError);
  nb::exception<oktopk::CommError>(m, "CommError", PyExc_RuntimeError);
  nb::exception<oktopk::DeviceError>(m, "DeviceError", PyExc_RuntimeError);
  oktopk::python::bind_ends(m);
  oktopk::python::bind_comm(m);
  oktopk::python::bind_native_messages(m);
  oktopk::python::bind_tune(m);
  oktopk::python::bind_reducer(m);
  oktopk::python::bind_elastic(m);
  oktopk::python::bind_optim(m);
}
