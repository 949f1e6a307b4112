// SPDX-License-Identifier: Apache-2.0
// Reducer, NodeReducer and BucketedReducer in the Python module (reducers.h has the classes). On an NVIDIA GPU: the
// device, steps with gradients in its memory, and the parts of a step that stays there, for preset slots. Memory of the
// GPU and its streams are integers here: a framework such as torch owns them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>

#include "python/src/gil.h"
#include "python/src/module.h"
#include "python/src/reducers.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

using ReducerClass = nb::class_<PyReducer, PySynchroniser>;

std::span<const std::byte> as_span(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

void bind_steps(nb::class_<PySynchroniser>& c) {
  c.def("step", &PySynchroniser::step, "gradient"_a.none(), "scale"_a = 1.0F,
        "Collective: adds scale * gradient to what is unsent and synchronises. None adds nothing. "
        "Then see `indices`, `values` and `dense`, or write_update().")
      .def("flush", &PySynchroniser::flush,
           "Collective: synchronises everything that is unsent, densely; nothing is left.")
      .def("write_update", &PySynchroniser::write_update, "out"_a.noconvert(), "factor"_a = 1.0F,
           "Writes the mean of the last step, times factor, as all n values.")
      .def_prop_ro("skipped", [](const PySynchroniser& r) { return r.update().skipped; })
      .def_prop_ro("is_dense", [](const PySynchroniser& r) { return r.update().is_dense(); })
      .def_prop_ro(
          "indices", [](const PySynchroniser& r) { return copy_to_numpy(r.update().sparse.idx); }, nb::rv_policy::move,
          "Indices of the last step's mean; empty after a dense step.")
      .def_prop_ro(
          "values", [](const PySynchroniser& r) { return copy_to_numpy(r.update().sparse.val); }, nb::rv_policy::move,
          "The mean at `indices`.")
      .def_prop_ro(
          "dense", [](const PySynchroniser& r) { return copy_to_numpy(r.update().dense); }, nb::rv_policy::move,
          "All n values of the mean after a dense step; empty otherwise.");
}

void bind_saving(nb::class_<PySynchroniser>& c) {
  c.def(
       "save",
       [](PySynchroniser& r) {
         r.check_before_save();
         const Bytes state = r.sync().save();
         return nb::bytes(reinterpret_cast<const char*>(state.data()), state.size());
       },
       "This rank's state: all that later steps depend on.")
      .def(
          "load", [](PySynchroniser& r, const nb::bytes& state) { r.use([&] { r.sync().load(as_span(state)); }); },
          "state"_a, "Collective: continues from what this rank saved, bit by bit.")
      .def(
          "load_all",
          [](PySynchroniser& r, const std::vector<nb::bytes>& states) {
            r.use([&] { r.sync().load_all(states.size(), [&](std::size_t rank) { return as_span(states[rank]); }); });
          },
          "states"_a,
          "Collective: continues from the states of all ranks of an earlier run, in rank order, whatever their number "
          "was.");
}

void bind_tentative(ReducerClass& c) {
  c.def("propose", &PyReducer::propose, "gradient"_a.none(), "scale"_a = 1.0F,
        "Collective: a step that commit() makes final, or roll_back() takes back, also after propose() raised. After "
        "roll_back() the gradient stays a part of the next proposed step, whose own gradient is then not added.")
      .def(
          "commit", [](PyReducer& r) { r.tentative().commit(); }, nb::call_guard<WithoutGil>(),
          "All ranks must commit a step, or all must roll it back.")
      .def(
          "roll_back",
          [](PyReducer& r) {
            r.drop_update();
            r.tentative().roll_back();
          },
          nb::call_guard<WithoutGil>())
      .def_prop_ro(
          "is_open", [](const PyReducer& r) { return r.own() != nullptr && r.own()->is_open(); },
          "propose() was called, and neither of the other two.")
      .def("move_to", &PyReducer::move_to, "comm"_a, nb::keep_alive<1, 2>(), nb::call_guard<WithoutGil>(),
           "Goes on with other ranks: unsent values and the place in the schedules stay. All ranks must do it "
           "together.");
}

void bind_unsent(ReducerClass& c) {
  c.def("forget", &PyReducer::forget, "Drops what was not applied yet. All ranks should do it together.")
      .def("keep_snapshot", &PyReducer::keep_snapshot, nb::call_guard<WithoutGil>(),
           "Remembers all that a step changes, for go_back().")
      .def("go_back", &PyReducer::go_back, nb::call_guard<WithoutGil>(),
           "Undoes the steps since keep_snapshot(). All ranks must do it together.")
      .def(
          "take_unsent",
          [](PyReducer& r, const HostFloats& out) {
            const WithoutGil free;
            r.take_unsent({out.data(), out.size()});
          },
          "out"_a.noconvert(),
          "Writes what is unsent, owner memory included, and forgets it. All ranks must do it together.")
      .def(
          "give_unsent",
          [](PyReducer& r, const HostFloats& values) {
            const WithoutGil free;
            r.give_unsent({values.data(), values.size()});
          },
          "values"_a, "Adds n values to what is unsent on this rank.")
      .def_prop_ro("ranks_led", &PyReducer::ranks_led,
                   "Ranks whose unsent values this rank holds: 1; with group_size the ranks of its node, or 0.")
      .def_prop_ro(
          "pace",
          [](const PyReducer& r) {
            const DensityPlan::Pace pace =
                r.own() ? state_of(*r.own()).density.pace() : DensityPlan::Pace{.steps = r.steps()};
            return std::make_tuple(pace.steps, pace.adaptive_steps, pace.density, pace.spent);
          },
          "The place in the schedules: (steps, steps of the adaptive density, its density, entries per value that it "
          "spent).")
      .def_prop_ro(
          "is_warm", [](const PyReducer& r) { return r.is_warm(); }, "Whether the warm-up is over.")
      .def(
          "begin_at",
          [](PyReducer& r, std::uint64_t steps, std::uint64_t adaptive_steps, double density, double spent) {
            r.begin_at({steps, adaptive_steps, density, spent});
          },
          "steps"_a, "adaptive_steps"_a = 0, "density"_a = 0.0, "spent"_a = 0.0,
          "Before the first step: goes on in the schedules where other Reducers were. All ranks must do it together.")
      .def(
          "use_profile", [](PyReducer& r, const Profile& profile) { state_of(r.reducer()).use_profile(profile); },
          "profile"_a, "Preset auto: decides by this profile instead of measuring one.");
}

using ExternalMeasurement = std::optional<std::tuple<double, double, std::uint64_t>>;

void bind_external(ReducerClass& c) {
  c.def(
       "prepare",
       [](PyReducer& r, const ExternalMeasurement& measured, std::uint64_t step_values) {
         const WithoutGil free;
         if (!measured) return r.reducer().prepare({}, step_values);
         const auto [latency, per_byte, sent] = *measured;
         const bool is_external = r.reducer().prepare(ExternalPrice{latency, per_byte}, step_values);
         state_of(r.reducer()).log.last.measured_bytes += sent;
         return is_external;
       },
       "measured"_a.none() = nb::none(), "step_values"_a = 0,
       "Collective: all that comes before a step, once. True: the next step is dense, and the "
       "caller, with external_dense, may make it himself. measured: (seconds, seconds per byte, "
       "bytes sent for it) of his, wanted where is_calibration_due. step_values: of a step of which this Reducer has a "
       "part.")
      .def(
          "prepare_flush", [](PyReducer& r) { r.reducer().prepare_flush(); }, nb::call_guard<WithoutGil>(),
          "Collective: the same before a flush.")
      .def_prop_ro("is_calibration_due", [](const PyReducer& r) { return state_of(r.reducer()).is_calibration_due(); })
      .def_prop_ro(
          "has_unsent", [](const PyReducer& r) { return state_of(r.reducer()).unsent.may_exist(); },
          "False: nothing is unsent, on any rank. O(1).")
      .def(
          "end_external",
          [](PyReducer& r, double seconds, std::uint64_t bytes, bool skipped, bool is_flush) {
            r.end_external({seconds, bytes, skipped, is_flush});
          },
          "seconds"_a, "bytes"_a, "skipped"_a = false, "is_flush"_a = false,
          "The caller has made the step that prepare() announced.")
      .def(
          "fail_external", [](PyReducer& r) { r.reducer().fail_external(); }, nb::call_guard<WithoutGil>(),
          "The caller's own step failed half-way.");
}

// Several Reducers of one thread share it.
struct PyGpu {
  PyGpu(int ordinal, const std::string& library) : device(make_cuda_device({.ordinal = ordinal, .library = library})) {}
  std::shared_ptr<const Device> device;
};

// An address of GPU memory.
template <class T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Nothing here waits for the GPU, except resident_state().
void bind_resident(ReducerClass& c) {
  c.def_prop_ro(
       "resident_words", [](PyReducer& r) { return r.gpu_steps().words(); },
       "32-bit words of each message and share of the next step. After prepare().")
      .def(
          "resident_send",
          [](PyReducer& r, std::uintptr_t gradient, std::uint32_t type, float scale, std::uintptr_t messages,
             std::uintptr_t stream) {
            const Gradient input(at<const void>(gradient), r.sync().n(), checked_type(type));
            const WithoutGil free;  // before its first step the ranks compare their options
            r.gpu_steps().send(input, scale, at<std::uint32_t>(messages), at<void>(stream));
          },
          "gradient"_a, "type"_a, "scale"_a, "messages"_a, "stream"_a,
          "Preset slots, after use_device() and prepare(): queues the first part of a step, which stays on the GPU. "
          "It adds scale * gradient and writes a message for each rank. All memory is the GPU's, by address.")
      .def(
          "resident_own",
          [](PyReducer& r, std::uintptr_t arrived, std::uintptr_t share, std::uintptr_t stream) {
            r.gpu_steps().own(at<const std::uint32_t>(arrived), at<std::uint32_t>(share), at<void>(stream));
          },
          "arrived"_a, "share"_a, "stream"_a, "The second part: the messages for this rank become its share.")
      .def(
          "resident_apply",
          [](PyReducer& r, std::uintptr_t shares, std::uintptr_t messages, std::uintptr_t out, std::uint32_t type,
             std::uintptr_t stream) {
            r.gpu_steps().apply(at<const std::uint32_t>(shares), at<const std::uint32_t>(messages), at<void>(out),
                                checked_type(type), at<void>(stream));
            r.drop_update();
          },
          "shares"_a, "messages"_a, "out"_a, "type"_a, "stream"_a,
          "The third part: the shares of all ranks become the mean, n values; NaN everywhere if some rank's gradient "
          "was not finite, and then all finite values stay unsent.")
      .def(
          "resident_state",
          [](PyReducer& r) {
            const GpuReport report = [&] {
              const WithoutGil free;
              return r.gpu_steps().report();
            }();
            nb::dict state;
            state["void_steps"] = report.void_steps;
            state["sent"] = report.sent;
            state["applied"] = report.applied;
            return state;
          },
          "Waits for the GPU. CommError where messages made no sense, UsageError where a sum overflowed.");
}

void bind_gpu(nb::module_& m, ReducerClass& c) {
  nb::class_<PyGpu>(
      m, "CudaDevice",
      "An NVIDIA GPU with the scratch memory of its kernels, which one thread at a time may use. DeviceError "
      "where the GPU, its driver or liboktopk_cuda.so is missing.")
      .def(nb::init<int, const std::string&>(), "ordinal"_a, "library"_a = "", nb::call_guard<WithoutGil>());
  c.def("give_on_gpu", &PyReducer::give_on_gpu, "address"_a, "stream"_a,
        "give_unsent() with n floats in the memory of that GPU. Does not look whether they are finite.");
  c.def(
       "use_device", [](PyReducer& r, const PyGpu& gpu) { r.use_device(gpu.device); }, "device"_a,
       nb::call_guard<WithoutGil>(),
       "Moves all that is of length n to this GPU; nothing else changes. All ranks must do it together.")
      .def(
          "step_on_gpu", &PyReducer::step_on_gpu, "address"_a, "n"_a, "type"_a, "scale"_a, "stream"_a,
          "Collective: step() with a gradient in the memory of that GPU, by address and type (0: float32, 1: bfloat16, "
          "2: float16), which is ready in this order of the stream.");
  bind_resident(c);
}

}  // namespace

nb::dict as_dict(const StepMetrics& m) {
  nb::dict stats;
  stats["step"] = m.step;
  stats["n"] = m.n;
  stats["k"] = m.k;
  stats["selected"] = m.selected;
  stats["gathered"] = m.gathered;
  stats["share"] = m.share;
  stats["local_threshold"] = m.local_threshold;
  stats["global_threshold"] = m.global_threshold;
  stats["messages"] = m.messages;
  stats["wire_bytes"] = m.wire_bytes;
  stats["measured_bytes"] = m.measured_bytes;
  stats["dense_bytes"] = m.dense_bytes;
  stats["seconds_check"] = m.times.check;
  stats["seconds_select"] = m.times.select;
  stats["seconds_exchange"] = m.times.exchange;
  stats["seconds_settle"] = m.times.settle;
  stats["seconds_idle"] = m.idle;
  stats["waited_for"] = m.waited_for;
  stats["seconds_longest_wait"] = m.longest_wait;
  stats["members"] = m.members;
  stats["epoch"] = m.epoch;
  stats["preset"] = m.preset;
  stats["codec"] = m.codec;
  stats["dense"] = m.is_dense;
  stats["skipped"] = m.skipped;
  stats["refreshed"] = m.refreshed;
  return stats;
}

void bind_reducer(nb::module_& m) {
  nb::class_<PySynchroniser> synchroniser(m, "Synchroniser", "Synchronises one flat gradient per step.");
  synchroniser.def_prop_ro("n", [](const PySynchroniser& r) { return r.sync().n(); })
      .def_prop_ro(
          "unsent_norm", [](const PySynchroniser& r) { return r.sync().unsent_norm(); }, nb::call_guard<WithoutGil>(),
          "Norm of the residual and owner memory of this rank; O(n).");
  bind_steps(synchroniser);
  bind_saving(synchroniser);

  ReducerClass reducer(m, "Reducer", "A Reducer; with group_size a NodeReducer.");
  reducer
      .def(nb::init<Communicator&, std::uint64_t, const nb::dict&, bool>(), "comm"_a, "n"_a, "options"_a,
           "external_dense"_a = false, nb::keep_alive<1, 2>())
      .def_prop_ro("k", &PyReducer::k)
      .def_prop_ro("steps", &PyReducer::steps)
      .def_prop_ro(
          "residual",
          [](const PyReducer& r) {
            return to_numpy(r.own() ? r.host_copy(state_of(*r.own()).unsent.values())
                                    : std::vector<float>(r.sync().n()));
          },
          nb::rv_policy::move)
      .def_prop_ro(
          "memory",
          [](const PyReducer& r) {
            const OwnerMemory memory = r.own() ? state_of(*r.own()).unsent.memory() : OwnerMemory{};
            return std::make_pair(memory.region.begin, to_numpy(r.own() ? r.memory_from(memory.region.begin, memory)
                                                                        : std::vector<float>()));
          },
          nb::rv_policy::move, "(first index, values) of what this rank remembers for its region.")
      .def_prop_ro("profile",
                   [](const PyReducer& r) -> std::optional<Profile> {
                     if (!r.own() || !state_of(*r.own()).tuner) return std::nullopt;
                     const Tuner& tuner = *state_of(*r.own()).tuner;
                     return tuner.is_calibrated() ? std::optional(tuner.profile()) : std::nullopt;
                   })
      .def_prop_ro(
          "stats", [](const PyReducer& r) { return as_dict(r.metrics()); }, "Of the last step, by name.")
      .def_prop_ro(
          "leaders",
          [](const PyReducer& r) {
            if (r.node() == nullptr) return std::vector<int>();
            return std::vector<int>(r.node()->leaders().begin(), r.node()->leaders().end());
          },
          "With group_size: the ranks that lead a node, increasing.");
  bind_tentative(reducer);
  bind_unsent(reducer);
  bind_external(reducer);
  bind_gpu(m, reducer);

  nb::class_<PyBucketedReducer, PySynchroniser>(m, "BucketedReducer", "A gradient of many tensors, in buckets.")
      .def(nb::init<Communicator&, std::vector<Index>, const nb::dict&, const std::string&, std::size_t>(), "comm"_a,
           "tensors"_a, "options"_a, "fusion"_a, "bucket_values"_a, nb::keep_alive<1, 2>())
      .def("begin", &PyBucketedReducer::begin, "gradient"_a, "scale"_a = 1.0F, "Collective: begins a step.")
      .def("ready", &PyBucketedReducer::ready, "tensor"_a, nb::call_guard<WithoutGil>(),
           "The values of this tensor are final. From any thread.")
      .def("wait", &PyBucketedReducer::wait, "Collective: ends the step.")
      .def_prop_ro("buckets", &PyBucketedReducer::buckets, "(first tensor, end) of each bucket, as they are exchanged.")
      .def_prop_ro(
          "stats", [](const PyBucketedReducer& r) { return as_dict(r.metrics()); }, "Sums over the buckets.");
}

}  // namespace oktopk::python
