// SPDX-License-Identifier: Apache-2.0
// A Communicator whose messages a Python object moves: torch.distributed process groups, mpi4py, or anything a user
// writes (python/oktopk/transport.py has the protocol). Called from C++ without the GIL, which it takes for the time of
// each call. An exception of the Python object becomes a CommError, after which the communicator is dead. An object
// with an attribute `native` (NativeMessages) only forms groups and answers questions: its messages need no Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transport_support.h"
#include "python/src/gil.h"
#include "python/src/module.h"
#include "python/src/native_messages.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

Communicator::Duration as_timeout(double seconds) {
  const double longest = in_seconds(kLongestTimeout);
  require(seconds > 0 && std::isfinite(seconds), "communicator: timeout = ", seconds, " s, but it must be positive");
  return std::chrono::duration_cast<Communicator::Duration>(std::chrono::duration<double>(std::min(seconds, longest)));
}

// Memory of C++ as a numpy array, good until the exchange is over.
template <class Byte>
nb::object view(Byte* data, std::size_t size) {
  using Array = nb::ndarray<nb::numpy, Byte, nb::ndim<1>, nb::c_contig>;
  static std::uint8_t nothing = 0;
  return nb::cast(Array(size == 0 ? &nothing : data, {size}, nb::handle()), nb::rv_policy::reference);
}

class PythonCommunicator final : public Communicator {
 public:
  // With the GIL held.
  PythonCommunicator(nb::object transport, double timeout_seconds);
  ~PythonCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return name_; }
  Duration timeout() const override { return timeout_; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  int host() override;

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;
  void abandon(std::uint64_t ticket) noexcept override;
  void kill() noexcept override;
  bool can_kill_waits() const override { return native_.has_value(); }
  bool is_forked() const override { return mark_.is_forked(); }

  nb::handle python_transport() const { return transport_; }

 private:
  template <class Act>
  auto guarded(const char* what, const Act& act);
  [[noreturn]] void die(const std::string& reason);

  const ProcessMark mark_;
  nb::object transport_;
  std::optional<NativeMessages> native_;
  int rank_;
  int size_;
  std::string name_;
  Duration timeout_;
  std::uint64_t next_ticket_ = 0;
  std::map<std::uint64_t, std::span<Recv>> open_;
  bool is_dead_ = false;
  std::string reason_;
};

PythonCommunicator::PythonCommunicator(nb::object transport, double timeout_seconds)
    : transport_(std::move(transport)),
      rank_(nb::cast<int>(transport_.attr("rank"))),
      size_(nb::cast<int>(transport_.attr("size"))),
      name_(nb::cast<std::string>(transport_.attr("name"))),
      timeout_(as_timeout(timeout_seconds)) {
  require(size_ > 0 && rank_ >= 0 && rank_ < size_, "communicator: rank ", rank_, " in a world of size ", size_);
  const nb::object native = nb::getattr(transport_, "native", nb::none());
  if (!native.is_none()) native_ = nb::cast<NativeMessages&>(native);
}

PythonCommunicator::~PythonCommunicator() {
  try {
    if (Py_IsInitialized()) {
      const WithGil gil;
      transport_.reset();
    }
  } catch (const CommError&) {
    // The interpreter is ending.
  }
  transport_.release();
}

void PythonCommunicator::die(const std::string& reason) {
  if (!is_dead_) reason_ = reason;
  is_dead_ = true;
  fail<CommError>(name_, ": rank ", rank_, ": ", reason);
}

// With the GIL; an exception from Python leaves the communicator dead, and is a CommError unless it ends the program.
template <class Act>
auto PythonCommunicator::guarded(const char* what, const Act& act) {
  if (is_dead_) die("the communicator is dead: " + reason_);
  const WithGil gil;
  std::string raised;
  try {
    return act();
  } catch (nb::python_error& error) {
    raised =
        nb::cast<std::string>(error.type().attr("__name__")) + ": " + nb::cast<std::string>(nb::str(error.value()));
    if (ends_program(error)) {
      reason_ = std::string(what) + ": " + raised;
      is_dead_ = true;
      throw;
    }
  } catch (const nb::cast_error&) {
    raised = "it answered with something of another type";
  }
  die(std::string(what) + ": " + raised);
}

std::unique_ptr<Communicator> PythonCommunicator::split(int color, int key) {
  return guarded("split", [&]() -> std::unique_ptr<Communicator> {
    return as_part(std::make_unique<PythonCommunicator>(transport_.attr("split")(color, key), in_seconds(timeout_)),
                   color);
  });
}

int PythonCommunicator::host() {
  return guarded("host",
                 [&] { return nb::hasattr(transport_, "host") ? nb::cast<int>(transport_.attr("host")()) : rank_; });
}

std::uint64_t PythonCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
  if (native_) return native_->use()->begin(sends, recvs);
  return guarded("begin", [&] {
    nb::list outgoing;
    nb::list incoming;
    for (const Send& send : sends) {
      const auto* data = reinterpret_cast<const std::uint8_t*>(send.bytes.data());
      outgoing.append(nb::make_tuple(send.peer, view(data, send.bytes.size())));
    }
    for (const Recv& recv : recvs) {
      auto* data = reinterpret_cast<std::uint8_t*>(recv.buffer.data());
      incoming.append(nb::make_tuple(recv.peer, view(data, recv.buffer.size())));
    }
    const std::uint64_t ticket = next_ticket_++;
    transport_.attr("begin")(ticket, outgoing, incoming);
    open_.emplace(ticket, recvs);
    return ticket;
  });
}

void PythonCommunicator::finish(std::uint64_t ticket) {
  if (native_) return native_->use()->finish(ticket);
  const auto node = open_.extract(ticket);
  const std::span<Recv> recvs = node.mapped();
  const std::vector<std::size_t> sizes = guarded("finish", [&] {
    return nb::cast<std::vector<std::size_t>>(transport_.attr("finish")(ticket, in_seconds(timeout_)));
  });
  if (sizes.size() != recvs.size()) {
    die("finish: " + std::to_string(sizes.size()) + " sizes for " + std::to_string(recvs.size()) + " receives");
  }
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    if (sizes[i] > recvs[i].buffer.size()) {
      die("a message of " + std::to_string(sizes[i]) + " bytes from rank " + std::to_string(recvs[i].peer) +
          ", capacity " + std::to_string(recvs[i].buffer.size()));
    }
    recvs[i].size = sizes[i];
  }
}

void PythonCommunicator::abandon(std::uint64_t ticket) noexcept {
  if (native_) return native_->abandon(ticket);
  open_.erase(ticket);
  if (!is_dead_) reason_ = "an exchange was abandoned";
  is_dead_ = true;
  if (!Py_IsInitialized()) return;
  try {
    const WithGil gil;
    transport_.attr("abandon")(ticket);
  } catch (...) {
    // Nobody is left to tell.
  }
}

void PythonCommunicator::kill() noexcept {
  if (is_forked()) return;
  native_ ? native_->kill() : Communicator::kill();
}

}  // namespace

void bind_python_communicator(nb::module_& m) {
  nb::class_<PythonCommunicator, Communicator>(m, "PythonCommunicator",
                                               "A communicator whose messages a Python object moves.")
      .def(nb::init<nb::object, double>(), "transport"_a, "timeout"_a = 60.0)
      .def_prop_ro("python_transport", &PythonCommunicator::python_transport);
}

}  // namespace oktopk::python
