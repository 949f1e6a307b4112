// SPDX-License-Identifier: Apache-2.0
// Reducers on an NVIDIA GPU in the Python module: the device, steps with gradients in its memory, and the parts of a
// step that stays there, for preset slots. Memory of the GPU and its streams are integers here: a framework such as
// torch owns them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "python/src/gil.h"
#include "python/src/reducers.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

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

}  // namespace

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

}  // namespace oktopk::python
