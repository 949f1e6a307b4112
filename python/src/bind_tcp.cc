// SPDX-License-Identifier: Apache-2.0
// Transport "tcp" for the Python layer: its ranks find each other through a store that Python gives as two functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <optional>
#include <string>

#include "oktopk/comm/transport_support.h"
#include "oktopk/comm/transports.h"
#include "python/src/gil.h"
#include "python/src/native_messages.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

constexpr auto kLeaveTime = std::chrono::seconds(5);

// With the GIL; an Exception of Python becomes a CommError.
template <class Act>
auto ask(const char* what, const Act& act) {
  const WithGil gil;
  std::string raised;
  try {
    return act();
  } catch (nb::python_error& error) {
    if (ends_program(error)) throw;
    raised = nb::cast<std::string>(nb::str(error.value()));
  } catch (const nb::cast_error&) {
    raised = "it answered with something of another type";
  }
  fail<CommError>("tcp: the store's ", what, ": ", raised);
}

// REQUIRES: both functions outlive the store.
KeyValueStore store_of(nb::handle set, nb::handle get) {
  KeyValueStore store;
  store.set = [set](const std::string& key, const std::string& value) {
    ask("set", [&] { set(key, nb::bytes(value.data(), value.size())); });
  };
  store.get = [get](const std::string& key, Communicator::Duration timeout) {
    return ask("get", [&]() -> std::optional<std::string> {
      const nb::object value = get(key, in_seconds(timeout));
      if (value.is_none()) return std::nullopt;
      const auto bytes = nb::cast<nb::bytes>(value);
      return std::string(bytes.c_str(), bytes.size());
    });
  };
  return store;
}

std::unique_ptr<NativeMessages> tcp_messages(int rank, int size, nb::handle set, nb::handle get,
                                             const std::string& secret, const std::string& job,
                                             const std::string& interface, double timeout, double join_timeout,
                                             double silence, bool encrypt) {
  TcpOptions options;
  options.rank = rank;
  options.size = size;
  options.store = store_of(set, get);
  options.secret = secret;
  options.job = job;
  options.interface = interface;
  options.timeout = duration_of(timeout);
  options.join_timeout = duration_of(join_timeout);
  options.silence = duration_of(silence);
  options.encrypt = encrypt;
  options.look = look_for_signals;
  const WithoutGil no_gil;
  return std::make_unique<NativeMessages>(make_tcp_world(options));
}

}  // namespace

NativeMessages::Use::Use(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  const std::lock_guard lock(shared_->mutex);
  comm_ = shared_->comm;
  if (comm_ == nullptr) fail<CommError>("tcp: the communicator is closed");
  ++shared_->users;
}

NativeMessages::Use::~Use() {
  comm_.reset();
  const std::lock_guard lock(shared_->mutex);
  --shared_->users;
  shared_->left.notify_all();
}

std::shared_ptr<Communicator> NativeMessages::held() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->comm;
}

void NativeMessages::abandon(std::uint64_t ticket) const noexcept {
  if (const auto comm = held()) comm->abandon(ticket);
}

void NativeMessages::kill() const noexcept {
  if (shared_->mark.is_forked()) return;
  if (const auto comm = held()) comm->kill();
}

void NativeMessages::close() const {
  if (shared_->mark.is_forked()) return close_in_child();
  std::unique_lock lock(shared_->mutex);
  const std::shared_ptr<Communicator> comm = std::exchange(shared_->comm, nullptr);
  if (shared_->users == 0 || comm == nullptr) return lock.unlock();
  comm->kill();
  shared_->left.wait_for(lock, kLeaveTime, [&] { return shared_->users == 0; });
  lock.unlock();  // whoever is still inside ends the communicator when it leaves
}

// Without the lock, which a thread of the parent may have held.
void NativeMessages::close_in_child() const noexcept {
  if (shared_->comm != nullptr) shared_->comm->close_in_child();
}

Communicator::Duration duration_of(double seconds) {
  require(seconds > 0, "tcp: timeout = ", seconds, " s, but it must be positive");
  return std::chrono::duration_cast<Communicator::Duration>(
      std::chrono::duration<double>(std::min(seconds, in_seconds(kLongestTimeout))));
}

void bind_native_messages(nb::module_& m) {
  nb::class_<NativeMessages>(m, "NativeMessages", nb::is_weak_referenceable(),
                             "Moves the messages of a transport without Python.")
      .def_prop_ro("transport", [](const NativeMessages& n) { return std::string(n.use()->transport()); })
      .def(
          "split",
          [](const NativeMessages& n, int color, int key) {
            return std::make_unique<NativeMessages>(n.use()->split(color, key));
          },
          "color"_a, "key"_a, nb::call_guard<WithoutGil>())
      .def("close", &NativeMessages::close, nb::call_guard<WithoutGil>(),
           "Says goodbye to the peers; the communicator cannot be used any more.")
      .def("kill", &NativeMessages::kill, nb::call_guard<WithoutGil>(), "From any thread: ends the exchanges of all.")
      .def("close_in_child", &NativeMessages::close_in_child,
           "In a child of fork(): closes the inherited descriptors.");
  m.def("tcp_available", &tcp_available, "Whether this build has transport tcp.");
  m.def("make_random_secret", &make_random_secret);
  m.def("read_secret_file", &read_secret_file, "path"_a,
        "The first line of a file that its group and others may not read: the secret of a job.");
  m.def("tcp_messages", &tcp_messages, "rank"_a, "size"_a, "set"_a, "get"_a, "secret"_a, "job"_a, "interface"_a = "",
        "timeout"_a = 60.0, "join_timeout"_a = 60.0, "silence"_a = 10.0, "encrypt"_a = false,
        "Collective: this rank of a world over sockets. set(key, bytes) and get(key, seconds) -> bytes or None are a "
        "store that all ranks reach.");
}

}  // namespace oktopk::python
