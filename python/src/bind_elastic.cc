// SPDX-License-Identifier: Apache-2.0
// Elastic worlds over TCP and their Reducer (oktopk/elastic/elastic_reducer.h) in the Python module, and the rendezvous
// server. The hooks are Python functions: they are called with the GIL, inside of a step that runs without it. When a
// hook raises, the communicator of the epoch dies, so that the other members repair the step without this one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "oktopk/base/process_mark.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/transports.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "python/src/gil.h"
#include "python/src/module.h"
#include "python/src/native_messages.h"
#include "python/src/reducers.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

constexpr auto kElasticLeaveTime = std::chrono::seconds(5);

class PyElasticReducer;

// A member's world. close() also ends the reducer on it.
class PyElasticWorld {
 public:
  explicit PyElasticWorld(std::unique_ptr<ElasticWorld> world) : world_(std::move(world)) {}

  ElasticWorld& get() const {
    if (world_ == nullptr) fail<CommError>("elastic world: it is closed");
    return *world_;
  }
  // Ends the calls of other threads in the reducer, and waits for them, for a limited time.
  void close();
  void kill() const noexcept {
    if (world_ != nullptr && !mark_.is_forked()) world_->kill();
  }
  void close_in_child() const noexcept {
    if (world_ != nullptr) world_->close_in_child();
  }

  PyElasticReducer* reducer = nullptr;  // at most one: the members count its steps
  std::atomic<int> users = 0;           // threads in its calls

 private:
  const ProcessMark mark_;
  std::unique_ptr<ElasticWorld> world_;
};

struct PyHooks {
  nb::object save_shared;
  nb::object load_shared;
  nb::object on_change;
};

// Each lost member's unsent values, as far as they are known, by name.
nb::list losses_of(const MembershipChange& change) {
  constexpr std::array<const char*, 3> kFates = {"none", "recovered", "lost"};
  nb::list losses;
  for (const MemberLoss& loss : change.losses) {
    nb::dict entry;
    entry["id"] = loss.id;
    entry["memory"] = kFates.at(static_cast<std::size_t>(loss.memory));
    entry["heir"] = loss.heir;
    entry["region"] = nb::make_tuple(loss.region_begin, loss.region_end);
    entry["measured_after"] = loss.unsent.step;
    entry["residual_norm"] = loss.unsent.residual_norm;
    entry["memory_norm"] = loss.unsent.memory_norm;
    losses.append(entry);
  }
  return losses;
}

class PyElasticReducer final : public PySynchroniser {
 public:
  PyElasticReducer(PyElasticWorld& world, std::uint64_t n, const nb::dict& options, nb::object save_shared,
                   nb::object load_shared, nb::object on_change)
      : PySynchroniser(options),
        world_(world),
        hooks_{std::move(save_shared), std::move(load_shared), std::move(on_change)} {
    require(world.reducer == nullptr, "elastic reducer: this world has a reducer already; make one world for each");
    require(!read_group_size(options), "elastic reducer: group_size, but elastic steps are exchanged by all members");
    const ReducerOptions read = read_options(options);
    const User user(&world.users);
    const WithoutGil free;  // a member that joins waits here
    auto made = std::make_unique<ElasticReducer>(world.get(), checked_n(n), read, hooks());
    elastic_ = made.get();
    sync_ = std::move(made);
    world.reducer = this;
    count_users(world.users);
  }
  ~PyElasticReducer() override {
    if (world_.reducer == this) world_.reducer = nullptr;
  }

  // The world is about to end. With the GIL.
  void drop() {
    update_ = {};
    hooks_ = {};
    elastic_ = nullptr;
    sync_.reset();
  }

  PyHooks& held() { return hooks_; }
  ElasticReducer& elastic() const {
    sync();  // CommError after close()
    return *elastic_;
  }

 private:
  template <class Act>
  auto ask(const Act& act) {
    const WithGil gil;
    try {
      return act();
    } catch (...) {
      world_.get().comm().kill();
      throw;
    }
  }

  ElasticHooks hooks() {
    ElasticHooks made;
    made.save_shared = [this] {
      return ask([&] {
        const auto bytes = nb::cast<nb::bytes>(hooks_.save_shared());
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        return Bytes(begin, begin + bytes.size());
      });
    };
    made.load_shared = [this](std::span<const std::byte> shared) {
      ask([&] { hooks_.load_shared(nb::bytes(reinterpret_cast<const char*>(shared.data()), shared.size())); });
    };
    made.on_change = [this](const MembershipChange& change) {
      ask([&] {
        hooks_.on_change(change.epoch, change.lost, change.left, change.joined, change.step, losses_of(change));
      });
    };
    return made;
  }

  PyElasticWorld& world_;
  PyHooks hooks_;
  ElasticReducer* elastic_ = nullptr;
};

// The hooks may refer to objects that refer to the reducer: the garbage collector sees such circles.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const PyHooks& held = nb::inst_ptr<PyElasticReducer>(self)->held();
  for (const nb::object* hook : {&held.save_shared, &held.load_shared, &held.on_change}) Py_VISIT(hook->ptr());
  return 0;
}
int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PyElasticReducer>(self)->held() = {};
  return 0;
}
PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

void PyElasticWorld::close() {
  if (mark_.is_forked()) return close_in_child();
  {
    const WithoutGil free;
    const auto end = std::chrono::steady_clock::now() + kElasticLeaveTime;
    while (users > 0 && std::chrono::steady_clock::now() < end) {
      world_->kill();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (users > 0) return;  // a thread waits for the arbiter: its memory stays
  if (reducer != nullptr) reducer->drop();
  const WithoutGil free;
  world_.reset();
}

std::unique_ptr<PyElasticWorld> join_tcp(const std::string& rendezvous, const std::string& secret, int least,
                                         bool encrypt, const std::string& interface, const std::string& job,
                                         double timeout, double join_timeout, double silence) {
  require(secret.size() >= kLeastSecretBytes, "elastic world: a secret of ", secret.size(),
          " bytes, but it must have at least ", kLeastSecretBytes);
  TcpElasticOptions options;
  options.least = least;
  options.tcp.rendezvous = rendezvous;
  options.tcp.secret = secret;
  options.tcp.encrypt = encrypt;
  options.tcp.interface = interface;
  options.tcp.job = job;
  options.tcp.timeout = duration_of(timeout);
  options.tcp.join_timeout = duration_of(join_timeout);
  options.tcp.silence = duration_of(silence);
  options.tcp.look = look_for_signals;
  const WithoutGil free;
  return std::make_unique<PyElasticWorld>(make_tcp_elastic_world(options));
}

std::unique_ptr<RendezvousServer> serve(const std::string& listen, const std::string& secret, const std::string& job,
                                        bool encrypt, double grace, const std::string& state) {
  const RendezvousServerOptions options{
      .listen = listen, .secret = secret, .job = job, .encrypt = encrypt, .grace = duration_of(grace), .state = state};
  const WithoutGil free;
  return std::make_unique<RendezvousServer>(options);
}

// Python may end the server while the object is still referred to.
struct PyServer {
  std::unique_ptr<RendezvousServer> server;
  RendezvousServer& get() const {
    if (server == nullptr) fail<CommError>("rendezvous: the server is closed");
    return *server;
  }
};

void bind_server(nb::module_& m) {
  nb::class_<PyServer>(m, "RendezvousServer",
                       "Serves from a thread of its own until close(); oktopk/worlds.py has the class of users.")
      .def(
          "__init__",
          [](PyServer* self, const std::string& listen, const std::string& secret, const std::string& job, bool encrypt,
             double grace,
             const std::string& state) { new (self) PyServer{serve(listen, secret, job, encrypt, grace, state)}; },
          "listen"_a = "127.0.0.1:0", nb::kw_only(), "secret"_a, "job"_a = "", "encrypt"_a = false, "grace"_a = 30.0,
          "state"_a = "")
      .def_prop_ro("address", [](const PyServer& s) { return s.get().address(); })
      .def_prop_ro(
          "refusals", [](const PyServer& s) { return s.get().refusals().count(); },
          "Connections that were dropped, for a wrong secret for example.")
      .def(
          "close", [](PyServer& s) { s.server.reset(); }, nb::call_guard<WithoutGil>());
}

void bind_world(nb::module_& m) {
  nb::class_<PyElasticWorld>(m, "ElasticWorld", nb::is_weak_referenceable(),
                             "A member of a job whose ranks change (docs/elastic_pytorch.md).")
      .def_prop_ro("rank", [](const PyElasticWorld& w) { return w.get().comm().rank(); })
      .def_prop_ro("size", [](const PyElasticWorld& w) { return w.get().comm().size(); })
      .def_prop_ro("epoch", [](const PyElasticWorld& w) { return w.get().membership().epoch; })
      .def_prop_ro(
          "members", [](const PyElasticWorld& w) { return w.get().membership().ids; }, "The ids of all, by rank.")
      .def_prop_ro(
          "flight", [](const PyElasticWorld& w) { return w.get().comm().flight(); },
          "The record of the last operations in this epoch.")
      .def(
          "require_equal",
          [](PyElasticWorld& w, const std::string& who, const std::string& mine) {
            Workspace work;
            const User user(&w.users);
            const WithoutGil free;
            require_equal(w.get().comm(), who, mine, work);
          },
          "who"_a, "mine"_a, "Collective: as the function of this name.")
      .def(
          "take_notes", [](const PyElasticWorld& w) { return w.get().take_notes(); },
          "Lines about the arbiter since the last call: it cannot be reached, or answers again.")
      .def("kill", &PyElasticWorld::kill, nb::call_guard<WithoutGil>(), "From any thread: ends the exchanges of all.")
      .def("close_in_child", &PyElasticWorld::close_in_child, "In a child of fork(): closes the inherited descriptors.")
      .def("close", &PyElasticWorld::close, "Says goodbye to the other members. Steps are not possible afterwards.");
  m.def("tcp_elastic_world", &join_tcp, "rendezvous"_a, "secret"_a, "least"_a = 1, "encrypt"_a = false,
        "interface"_a = "", "job"_a = "", "timeout"_a = 60.0, "join_timeout"_a = 60.0, "silence"_a = 10.0,
        "Joins the job at the server host:port. Returns when this member is in an epoch; the first one begins when "
        "`least` members have joined.");
}

}  // namespace

void bind_elastic(nb::module_& m) {
  bind_server(m);
  bind_world(m);
  nb::class_<PyElasticReducer, PySynchroniser>(
      m, "ElasticReducer", "A Reducer whose step() returns when all members have committed it.", nb::type_slots(slots))
      .def(nb::init<PyElasticWorld&, std::uint64_t, const nb::dict&, nb::object, nb::object, nb::object>(), "world"_a,
           "n"_a, "options"_a, "save_shared"_a, "load_shared"_a, "on_change"_a, nb::keep_alive<1, 2>(),
           "save_shared() -> bytes; load_shared(bytes) is called here where this member joins a job that runs; "
           "on_change(epoch, lost, left, joined, step, losses) is called inside of steps.")
      .def(
          "leave_after_next", [](const PyElasticReducer& r) { r.elastic().leave_after_next(); },
          "The next step is this member's last one. Local.")
      .def_prop_ro("committed", [](const PyElasticReducer& r) { return r.elastic().committed(); })
      .def_prop_ro(
          "has_joined", [](const PyElasticReducer& r) { return r.elastic().has_joined(); },
          "Whether this member came after the first epoch.")
      .def_prop_ro("k", [](const PyElasticReducer& r) { return r.elastic().reducer().k(); })
      .def_prop_ro("steps", [](const PyElasticReducer& r) { return r.elastic().reducer().steps(); })
      .def_prop_ro("leaders", [](const PyElasticReducer&) { return std::vector<int>(); })
      .def_prop_ro(
          "stats", [](const PyElasticReducer& r) { return as_dict(r.elastic().reducer().metrics()); },
          "Of the last step, by name.")
      .def("forget", [](const PyElasticReducer& r) { reducer_of(r.elastic()).forget(); });
}

}  // namespace oktopk::python
