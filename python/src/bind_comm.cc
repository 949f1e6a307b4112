// SPDX-License-Identifier: Apache-2.0
// Communicators, what they have recorded, and the functions of all ranks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/transport_support.h"
#include "oktopk/comm/transports.h"
#include "oktopk/trace/trace.h"
#include "python/src/gil.h"
#include "python/src/module.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

std::vector<std::unique_ptr<Communicator>> thread_world(int P, double timeout) {
  require(timeout > 0, "thread_world: timeout = ", timeout, " s, but it must be positive");
  return make_thread_world(P,
                           std::chrono::duration_cast<Communicator::Duration>(std::chrono::duration<double>(timeout)));
}

using Weights = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_equal_floats(Communicator& comm, const Weights& values, std::uint64_t step, const std::string& what) {
  Workspace work;
  const WithoutGil free;
  check_equal(comm, what, std::as_bytes(std::span<const float>(values.data(), values.size())), step, work);
}

void require_equal_texts(Communicator& comm, const std::string& who, const std::string& mine) {
  Workspace work;
  const WithoutGil free;
  require_equal(comm, who, mine, work);
}

void bind_flight(nb::module_& m) {
  nb::class_<FlightRecorder>(m, "FlightRecorder", "The last operations of a rank (docs/observability.md).")
      .def("to_json", &FlightRecorder::to_json, nb::call_guard<WithoutGil>())
      .def("write", &FlightRecorder::write, "file"_a, nb::call_guard<WithoutGil>(), "A dump, for `oktopk doctor`.")
      .def("note_error", &FlightRecorder::note_error, "text"_a, "The first error stays in the dumps.")
      .def_prop_ro("idle_seconds", &FlightRecorder::idle_seconds, "Since a step ended; negative: none has.");
  bind_signal_dumps(m);
  m.def("check_equal", &check_equal_floats, "comm"_a, "values"_a, "step"_a = 0, "what"_a = "weights",
        "Collective: UsageError on every rank, which names the ranks that differ from the majority, unless the float32 "
        "values are the same bits on all ranks.");
  m.def("require_equal", &require_equal_texts, "comm"_a, "who"_a, "mine"_a,
        "Collective: the same UsageError on every rank, which names the first of the items 'a, b, c' that differs and "
        "the ranks, unless all say the same. Texts travel only when their hashes differ.");
}

}  // namespace

void bind_comm(nb::module_& m) {
  bind_flight(m);
  nb::class_<Communicator>(m, "Communicator", nb::is_weak_referenceable(),
                           "P ranks that exchange messages. One thread at a time per object.")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def_prop_ro("transport", &Communicator::transport)
      .def_prop_ro(
          "sent_bytes", [](const Communicator& c) { return c.sent_so_far().bytes; },
          "Bytes that this rank has sent so far, without the transport's own heads.")
      .def_prop_ro(
          "timeout", [](const Communicator& c) { return in_seconds(c.timeout()); },
          "Seconds after which a wait gives up with CommError.")
      .def("split", &Communicator::split, "color"_a, "key"_a = 0, nb::call_guard<WithoutGil>(),
           "Collective: ranks of one color form a new communicator, ordered by (key, rank).")
      .def_prop_ro(
          "flight", [](Communicator& c) { return c.flight(); }, "The record of the last operations.")
      .def("kill", &Communicator::kill, nb::call_guard<WithoutGil>(),
           "Leaves the communicator dead, for a caller who cannot go on.");

  bind_python_communicator(m);

  nb::class_<Trace>(m, "Trace", "Spans of what ranks do when, for Perfetto (docs/observability.md).")
      .def(nb::init<std::size_t>(), "most_events"_a = Trace::kMostEvents)
      .def("__len__", &Trace::size)
      .def_prop_ro("dropped", &Trace::dropped, "Events that came when the trace was full.")
      .def("to_json", &Trace::to_json)
      .def("write", &Trace::write, "file"_a, "One JSON file, to open at ui.perfetto.dev.");
  m.def("gather_trace", &gather_trace, "comm"_a, "trace"_a, nb::call_guard<WithoutGil>(),
        "Collective: rank 0's trace gets the events of all ranks.");

  m.def("thread_world", &thread_world, "size"_a, "timeout"_a = 60.0,
        "The communicators of `size` ranks inside this process, to be used from one thread each.");
}

}  // namespace oktopk::python
