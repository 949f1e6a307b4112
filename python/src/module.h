// SPDX-License-Identifier: Apache-2.0
// The parts of the Python module oktopk._core.
#pragma once

#include <nanobind/nanobind.h>

namespace oktopk::python {

void bind_comm(nanobind::module_& m);
void bind_signal_dumps(nanobind::module_& m);
void bind_python_communicator(nanobind::module_& m);  // after Communicator
void bind_tune(nanobind::module_& m);
void bind_reducer(nanobind::module_& m);
void bind_elastic(nanobind::module_& m);  // after bind_reducer()
void bind_optim(nanobind::module_& m);

}  // namespace oktopk::python
