// SPDX-License-Identifier: Apache-2.0
#include "python/src/python_communicator.h"
#include "python/src/gil.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace nb = nanobind;

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

}  // namespace

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

}  // namespace oktopk::python
