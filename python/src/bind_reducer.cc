// SPDX-License-Identifier: Apache-2.0
// Reducer for Python: one training step's synchronisation of one flat gradient. The GIL is released
// while a step runs; a communicator written in Python takes it for its messages.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "python/src/arrays.h"
#include "python/src/module.h"
#include "python/src/options.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

using HostFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::byte> as_span(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

class PyReducer {
 public:
  PyReducer(Communicator& comm, std::uint64_t n, const nb::dict& options, bool external_dense)
      : options_(nb::steal<nb::dict>(PyDict_Copy(options.ptr()))),
        reducer_(comm, checked_n(n), with_external(read_options(options), external_dense)) {}

  Reducer& reducer() { return reducer_; }
  const Reducer& reducer() const { return reducer_; }
  const Update& update() const { return update_; }

  void step(const std::optional<AnyArray>& gradient, float scale) {
    const Gradient input = gradient ? as_gradient(*gradient, "step") : Gradient();
    run([&] { return reducer_.step(input, scale); });
  }
  void flush() {
    run([&] { return reducer_.flush(); });
  }

  void end_external(const ExternalStep& made) { update_ = reducer_.end_external(made); }

  // The mean times factor, over whatever was there.
  void write_update(const HostFloats& out, float factor) const {
    const std::span<float> x(out.data(), out.size());
    require(x.size() == reducer_.n(), "write_update: ", x.size(), " values, but n = ", reducer_.n());
    const nb::gil_scoped_release free;
    if (!update_.is_dense()) std::fill(x.begin(), x.end(), 0.0F);
    update_.for_each([&](Index i, float mean) { x[i] = factor * mean; });
  }

  void keep_snapshot() { reducer_.copy_to(snapshot_.emplace()); }
  void go_back() {
    require(snapshot_.has_value(), "go_back: no snapshot was kept");
    reducer_.go_back(*snapshot_);
    update_ = {};
  }

  nb::dict stats() const;

 private:
  static ReducerOptions with_external(ReducerOptions options, bool external_dense) {
    options.choice.external_dense = external_dense;
    return options;
  }

  template <class Act>
  void run(const Act& act) {
    const nb::gil_scoped_release free;
    update_ = {};
    update_ = act();
  }

  nb::dict options_;  // keeps a trace alive
  Reducer reducer_;
  Update update_;
  std::optional<Reducer::Snapshot> snapshot_;
};

nb::dict PyReducer::stats() const {
  const StepMetrics m = reducer_.metrics();
  nb::dict stats;
  stats["step"] = m.step;
  stats["n"] = m.n;
  stats["k"] = m.k;
  stats["selected"] = m.selected;
  stats["gathered"] = m.gathered;
  stats["share"] = m.share;
  stats["threshold_local"] = m.local_threshold;
  stats["threshold_global"] = m.global_threshold;
  stats["messages"] = m.messages;
  stats["wire_bytes"] = m.wire_bytes;
  stats["dense_bytes"] = m.dense_bytes;
  stats["seconds_check"] = m.times.check;
  stats["seconds_select"] = m.times.select;
  stats["seconds_exchange"] = m.times.exchange;
  stats["seconds_settle"] = m.times.settle;
  stats["preset"] = m.preset;
  stats["codec"] = to_string(reducer_.allreduce().options().codec);
  stats["dense"] = m.is_dense;
  stats["skipped"] = m.skipped;
  stats["refreshed"] = m.refreshed;
  return stats;
}

void bind_steps(nb::class_<PyReducer>& c) {
  c.def("step", &PyReducer::step, "gradient"_a.none(), "scale"_a = 1.0F,
        "Collective: adds scale * gradient to what is unsent and synchronises. None adds nothing. "
        "Then see `indices`, `values` and `dense`, or write_update().")
      .def("flush", &PyReducer::flush, "Collective: synchronises everything that is unsent, densely; nothing is left.")
      .def("write_update", &PyReducer::write_update, "out"_a.noconvert(), "factor"_a = 1.0F,
           "Writes the mean of the last step, times factor, as all n values.")
      .def_prop_ro("skipped", [](const PyReducer& r) { return r.update().skipped; })
      .def_prop_ro("is_dense", [](const PyReducer& r) { return r.update().is_dense(); })
      .def_prop_ro(
          "indices", [](const PyReducer& r) { return copy_to_numpy(r.update().sparse.idx); }, nb::rv_policy::move,
          "Indices of the last step's mean; empty after a dense step.")
      .def_prop_ro(
          "values", [](const PyReducer& r) { return copy_to_numpy(r.update().sparse.val); }, nb::rv_policy::move,
          "The mean at `indices`.")
      .def_prop_ro(
          "dense", [](const PyReducer& r) { return copy_to_numpy(r.update().dense); }, nb::rv_policy::move,
          "All n values of the mean after a dense step; empty otherwise.")
      .def_prop_ro(
          "sent",
          [](const PyReducer& r) {
            return std::make_pair(copy_to_numpy(r.reducer().sent().idx), copy_to_numpy(r.reducer().sent().val));
          },
          nb::rv_policy::move, "(indices, values) that this rank sent in the last step.");
}

void bind_state(nb::class_<PyReducer>& c) {
  c.def(
       "save",
       [](const PyReducer& r) {
         const Bytes state = r.reducer().save();
         return nb::bytes(reinterpret_cast<const char*>(state.data()), state.size());
       },
       "This rank's state: all that later steps depend on.")
      .def(
          "load",
          [](PyReducer& r, const nb::bytes& state) {
            const nb::gil_scoped_release free;
            r.reducer().load(as_span(state));
          },
          "state"_a, "Collective: continues from what this rank saved, bit by bit.")
      .def(
          "load_all",
          [](PyReducer& r, const std::vector<nb::bytes>& states) {
            std::vector<Bytes> all;
            for (const nb::bytes& state : states) {
              const auto bytes = as_span(state);
              all.emplace_back(bytes.begin(), bytes.end());
            }
            const nb::gil_scoped_release free;
            r.reducer().load_all(all);
          },
          "states"_a,
          "Collective: continues from the states of all ranks of an earlier run, in "
          "rank order, whatever their number was.")
      .def(
          "forget", [](PyReducer& r) { r.reducer().forget(); },
          "Drops what was not applied yet. All ranks should do it together.")
      .def("keep_snapshot", &PyReducer::keep_snapshot, nb::call_guard<nb::gil_scoped_release>(),
           "Remembers all that a step changes, for go_back().")
      .def("go_back", &PyReducer::go_back, nb::call_guard<nb::gil_scoped_release>(),
           "As if the steps since keep_snapshot() had not been. All ranks must do it together.")
      .def(
          "take_unsent",
          [](PyReducer& r, const HostFloats& out) {
            const nb::gil_scoped_release free;
            r.reducer().unsent().take({out.data(), out.size()});
          },
          "out"_a.noconvert(),
          "Writes what is unsent, owner memory included, and forgets it. All ranks must do "
          "it together.")
      .def(
          "give_unsent",
          [](PyReducer& r, const HostFloats& values) {
            const nb::gil_scoped_release free;
            r.reducer().unsent().give({values.data(), values.size()});
          },
          "values"_a, "Adds n values to what is unsent on this rank.")
      .def_prop_ro(
          "pace",
          [](const PyReducer& r) {
            const DensityPlan::Pace pace = r.reducer().density().pace();
            return std::make_tuple(pace.steps, pace.adaptive_steps, pace.density, pace.spent);
          },
          "(steps, steps of the adaptive density, its density, entries per value that it spent): "
          "the place in the schedules.")
      .def(
          "begin_at",
          [](PyReducer& r, std::uint64_t steps, std::uint64_t adaptive_steps, double density, double spent) {
            r.reducer().density().begin_at({steps, adaptive_steps, density, spent});
          },
          "steps"_a, "adaptive_steps"_a = 0, "density"_a = 0.0, "spent"_a = 0.0,
          "Before the first step: goes on in the schedules where other Reducers were. All ranks "
          "must do it together.")
      .def(
          "use_profile", [](PyReducer& r, const Profile& profile) { r.reducer().use(profile); }, "profile"_a,
          "Preset auto: decides by this profile instead of measuring one.");
}

using ExternalSeconds = std::optional<std::pair<double, double>>;

void bind_external(nb::class_<PyReducer>& c) {
  c.def(
       "prepare",
       [](PyReducer& r, const ExternalSeconds& measured) {
         const nb::gil_scoped_release free;
         if (!measured) return r.reducer().prepare();
         return r.reducer().prepare(ExternalPrice{measured->first, measured->second});
       },
       "measured"_a.none() = nb::none(),
       "Collective: all that comes before a step, once. True: the next step is dense, and the "
       "caller, with external_dense, may make it himself. measured: (seconds, seconds per byte) of "
       "his, wanted where is_calibration_due.")
      .def(
          "prepare_flush", [](PyReducer& r) { r.reducer().prepare_flush(); }, nb::call_guard<nb::gil_scoped_release>(),
          "Collective: the same before a flush.")
      .def_prop_ro("is_calibration_due", [](const PyReducer& r) { return r.reducer().is_calibration_due(); })
      .def_prop_ro(
          "has_unsent", [](const PyReducer& r) { return r.reducer().unsent().may_exist(); },
          "False: nothing is unsent, on any rank. O(1).")
      .def(
          "end_external",
          [](PyReducer& r, double seconds, std::uint64_t bytes, bool skipped, bool is_flush) {
            r.end_external({seconds, bytes, skipped, is_flush});
          },
          "seconds"_a, "bytes"_a, "skipped"_a = false, "is_flush"_a = false,
          "The caller has made the step that prepare() announced.")
      .def(
          "fail_external", [](PyReducer& r) { r.reducer().fail_external(); }, nb::call_guard<nb::gil_scoped_release>(),
          "The caller's own step failed half-way.");
}

}  // namespace

void bind_reducer(nb::module_& m) {
  nb::class_<PyReducer> reducer(m, "Reducer", "Synchronises one flat gradient per step.");
  reducer
      .def(nb::init<Communicator&, std::uint64_t, const nb::dict&, bool>(), "comm"_a, "n"_a, "options"_a,
           "external_dense"_a = false, nb::keep_alive<1, 2>())
      .def_prop_ro("n", [](const PyReducer& r) { return r.reducer().n(); })
      .def_prop_ro("k", [](const PyReducer& r) { return r.reducer().k(); })
      .def_prop_ro("steps", [](const PyReducer& r) { return r.reducer().steps(); })
      .def_prop_ro(
          "residual", [](const PyReducer& r) { return copy_to_numpy(r.reducer().residual()); }, nb::rv_policy::move)
      .def_prop_ro(
          "memory",
          [](const PyReducer& r) {
            const OwnerMemory memory = r.reducer().memory();
            return std::make_pair(memory.region.begin, copy_to_numpy(memory.values));
          },
          nb::rv_policy::move, "(first index, values) of what this rank remembers for its region.")
      .def_prop_ro(
          "unsent_norm", [](const PyReducer& r) { return r.reducer().unsent_norm(); },
          nb::call_guard<nb::gil_scoped_release>(), "Norm of this rank's residual and owner memory; O(n).")
      .def_prop_ro("profile",
                   [](const PyReducer& r) -> std::optional<Profile> {
                     const Tuner* tuner = r.reducer().tuner();
                     if (tuner == nullptr || !tuner->is_calibrated()) return std::nullopt;
                     return tuner->profile();
                   })
      .def_prop_ro("stats", &PyReducer::stats, "Of the last step, by name.");
  bind_steps(reducer);
  bind_state(reducer);
  bind_external(reducer);
}

}  // namespace oktopk::python
