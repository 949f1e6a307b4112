// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp_mesh.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/tcp_listener.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

using MeshClock = std::chrono::steady_clock;

constexpr std::string_view kFilePrefix = "file:";
constexpr auto kRetryPause = std::chrono::milliseconds(20);
constexpr auto kMostPerAddress = std::chrono::seconds(5);
constexpr Communicator::Duration kLongestTurn = std::chrono::seconds(1);  // of the wait for one lower rank
constexpr auto kShortestGet = std::chrono::milliseconds(1);               // some stores take none for for ever

void check_tcp_options(const TcpOptions& options) {
  require(options.size >= 1, "tcp: a world of size ", options.size, ", must be at least 1");
  require(options.rank >= 0 && options.rank < options.size, "tcp: rank ", options.rank, " in a world of size ",
          options.size, ", must be from 0 to size - 1");
  require(options.secret.size() >= kLeastSecretBytes, "tcp: the secret has ", options.secret.size(),
          " bytes, must have at least ", kLeastSecretBytes, ", the same on all ranks (make_random_secret)");
  for (const auto& [name, value] : std::map<std::string, Communicator::Duration>{
           {"timeout", options.timeout}, {"join_timeout", options.join_timeout}, {"silence", options.silence}})
    require(value > Communicator::Duration::zero(), "tcp: ", name, " = ", in_seconds(value), " s, must be positive");
  require(options.silence >= std::chrono::milliseconds(100), "tcp: silence = ", in_seconds(options.silence),
          " s, must be at least 0.1 s");
  require(options.size == 1 || options.store.has_value() || !options.rendezvous.empty(),
          "tcp: no rendezvous is given: host:port, file:DIRECTORY or a store");
}

bool is_file(const TcpOptions& options) { return options.rendezvous.starts_with(kFilePrefix); }
bool is_server(const TcpOptions& options) {
  return !options.store.has_value() && !options.rendezvous.empty() && !is_file(options);
}

// Accepts the higher ranks on a thread of its own.
class Accepting {
 public:
  Accepting(TcpListener listener, int size) : listener_(std::move(listener)), sessions_(to_size(size)) {
    missing_ = to_size(size) - to_size(static_cast<int>(listener_.identity().id)) - 1;
    thread_ = std::thread([this] { run(); });
  }
  ~Accepting() {
    stop_.wake();
    thread_.join();
  }

  // The sessions by rank; those that did not come by the deadline are closed.
  std::vector<TcpSession> take(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return missing_ == 0; });
    return std::move(sessions_);
  }

 private:
  static std::size_t to_size(int number) { return static_cast<std::size_t>(number); }

  void run() {
    std::vector<pollfd> entries;
    while (true) {
      entries.assign(1, {stop_.fd(), POLLIN, 0});
      listener_.add_to(entries);
      // Half a handshake is dropped at its deadline, without an event.
      ::poll(entries.data(), static_cast<nfds_t>(entries.size()), 250);
      if (entries[0].revents != 0) return;
      for (TcpSession& session : listener_.advance()) keep(std::move(session));
    }
  }

  void keep(TcpSession session) {
    const std::lock_guard lock(mutex_);
    if (session.id <= listener_.identity().id || session.id >= sessions_.size())
      return listener_.refuse(session.address, text_of("says that it is rank ", session.id));
    TcpSession& place = sessions_[session.id];
    if (place.socket.is_open())
      return listener_.refuse(session.address, text_of("says that it is rank ", session.id, ", which is here already"));
    place = std::move(session);
    --missing_;
    changed_.notify_all();
  }

  TcpListener listener_;
  WakePipe stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TcpSession> sessions_;
  std::size_t missing_ = 0;
  std::thread thread_;
};

std::string key_of(const TcpOptions& options, int rank) {
  return text_of("oktopk/", options.job, "/", options.epoch, "/", rank);
}

// The key by which a rank says that it has reached all lower ranks.
std::string mark_of(const TcpOptions& options, int rank) { return key_of(options, rank) + "/met"; }

// The address to listen at, and those to tell the others.
struct Place {
  Socket socket;
  std::vector<std::string> hosts;
};

Place find_place(const TcpOptions& options) {
  Place place;
  if (!options.interface.empty()) {
    place.hosts = addresses_of(options.interface);
    require(!place.hosts.empty(), "tcp: interface \"", options.interface, "\" is neither an interface nor an address ",
            "of this host");
  } else if (is_server(options)) {
    place.hosts = {address_towards(parse_endpoint(options.rendezvous))};
  }
  if (!place.hosts.empty() && !place.hosts.front().empty()) {
    place.hosts.resize(1);
    place.socket = listen_at({place.hosts.front(), "0"});
  } else {
    place.hosts = addresses_of("");
    place.socket = listen_at({"::", "0"});
    if (!place.socket.is_open()) place.socket = listen_at({"0.0.0.0", "0"});
  }
  if (!place.socket.is_open()) fail<CommError>("tcp: rank ", options.rank, " finds no port to listen at");
  return place;
}

// An entry of the store: the instance, the port, and the hosts under which the rank may be reached.
std::string write_entry(const Place& place, std::uint64_t instance) {
  std::string text = text_of(instance, " ", local_port(place.socket));
  for (const std::string& host : place.hosts) text += " " + host;
  return text;
}

std::vector<TcpTarget> read_entry(const std::string& text, int rank) {
  std::istringstream in(text);
  std::uint64_t instance = 0;
  std::string port, host;
  in >> instance >> port;
  std::vector<TcpTarget> targets;
  while (in >> host && targets.size() < 64)
    targets.push_back({{host, port}, static_cast<std::uint64_t>(rank), instance});
  return targets;
}

// Connects to the lower ranks by turns: one that is missing does not hide this rank from the others.
class LowerRanks {
 public:
  LowerRanks(const KeyValueStore& store, const TcpOptions& options, const TcpIdentity& mine, Deadline deadline)
      : store_(store), options_(options), mine_(mine), deadline_(deadline) {
    for (int rank = options.rank - 1; rank >= 0; --rank) missing_.push_back({.rank = rank});
  }

  // The sessions by rank. CommError names the ranks that were not reached by the deadline.
  std::vector<TcpSession> connect() {
    std::vector<TcpSession> sessions(missing_.size());
    while (!missing_.empty() && MeshClock::now() < deadline_) {
      Missing next = std::move(missing_.front());
      missing_.pop_front();
      auto session = try_once(next);
      if (session.has_value())
        sessions[static_cast<std::size_t>(next.rank)] = std::move(*session);
      else
        missing_.push_back(std::move(next));
    }
    std::string names;
    for (const auto& [rank, why] : missing_) names += text_of(names.empty() ? "rank " : "; rank ", rank, ": ", why);
    if (!names.empty()) fail<CommError>(names);
    return sessions;
  }

 private:
  struct Missing {
    int rank = 0;
    std::string why = "did not come to the rendezvous";
  };

  // Waits for the rank's entry for one turn, and tries its addresses once.
  std::optional<TcpSession> try_once(Missing& missing) {
    // All of them have their turn in the first half of the time.
    const auto turn = std::min(kLongestTurn, options_.join_timeout / (2 * options_.rank));
    const auto left = std::max<MeshClock::duration>(deadline_ - MeshClock::now(), kShortestGet);
    const auto entry = store_.get(key_of(options_, missing.rank), std::min<MeshClock::duration>(turn, left));
    if (!entry.has_value()) return std::nullopt;
    for (const TcpTarget& target : read_entry(*entry, missing.rank)) try {
        return connect_session(target, mine_, std::min<Deadline>(deadline_, MeshClock::now() + kMostPerAddress));
      } catch (const CommError& error) {
        missing.why = error.what();
      }
    std::this_thread::sleep_for(kRetryPause);
    return std::nullopt;
  }

  const KeyValueStore& store_;
  const TcpOptions& options_;
  const TcpIdentity& mine_;
  const Deadline deadline_;
  std::deque<Missing> missing_;
};

KeyValueStore open_store(const TcpOptions& options) {
  if (options.store.has_value()) return *options.store;
  if (is_file(options)) return make_file_store(options.rendezvous.substr(kFilePrefix.size()));
  return make_server_store({options.rendezvous, options.secret, options.job, options.encrypt, options.join_timeout});
}

// Rank 0 serves the store where nobody does.
std::unique_ptr<RendezvousServer> serve_if_first(const TcpOptions& options) {
  if (!is_server(options) || options.rank != 0) return nullptr;
  try {
    return std::make_unique<RendezvousServer>(
        RendezvousServerOptions{options.rendezvous, options.secret, options.job, options.encrypt});
  } catch (const CommError&) {
    return nullptr;  // the address is taken, or of another host: somebody else serves there
  }
}

void expect_all(const std::vector<TcpSession>& sessions, const TcpOptions& options) {
  std::string missing;
  for (int rank = options.rank + 1; rank < options.size; ++rank)
    if (!sessions[static_cast<std::size_t>(rank)].socket.is_open())
      missing += text_of(missing.empty() ? " " : ", ", rank);
  if (!missing.empty())
    fail<CommError>("tcp: rank ", options.rank, ": these ranks did not come within ", in_seconds(options.join_timeout),
                    " s:", missing);
}

// The rank that serves the store waits until nobody needs it any more.
void await_marks(const KeyValueStore& store, const TcpOptions& options, Deadline deadline) {
  for (int rank = 1; rank < options.size; ++rank) {
    const auto left = std::max<MeshClock::duration>(deadline - MeshClock::now(), kShortestGet);
    if (!store.get(mark_of(options, rank), left).has_value())
      fail<CommError>("tcp: rank ", options.rank, ": rank ", rank, " did not reach all lower ranks within ",
                      in_seconds(options.join_timeout), " s");
  }
}

}  // namespace

TcpMesh connect_mesh(const TcpOptions& options) {
  check_tcp_options(options);
  TcpMesh mesh{std::vector<TcpSession>(1), host_identity()};
  if (options.size == 1) return mesh;
  const Deadline deadline = MeshClock::now() + std::min(options.join_timeout, kLongestTimeout);
  const auto server = serve_if_first(options);
  const KeyValueStore store = open_store(options);
  Place place = find_place(options);
  TcpIdentity mine{options.secret,
                   options.job,
                   options.epoch,
                   TcpPurpose::mesh,
                   options.encrypt,
                   static_cast<std::uint64_t>(options.rank),
                   0,
                   mesh.host};
  fill_random(std::as_writable_bytes(std::span(&mine.instance, 1)));
  const std::string entry = write_entry(place, mine.instance);
  Accepting accepting(TcpListener(std::move(place.socket), mine, options.refusals), options.size);
  std::vector<TcpSession> lower;
  try {
    store.set(key_of(options, options.rank), entry);
    lower = LowerRanks(store, options, mine, deadline).connect();
    if (is_server(options)) store.set(mark_of(options, options.rank), "");
  } catch (const CommError& error) {
    fail<CommError>("tcp: rank ", options.rank, " could not join within ", in_seconds(options.join_timeout),
                    " s: ", error.what());
  }
  mesh.sessions = accepting.take(deadline);
  expect_all(mesh.sessions, options);
  if (server != nullptr) await_marks(store, options, deadline);
  std::move(lower.begin(), lower.end(), mesh.sessions.begin());
  if (store.remove) store.remove(key_of(options, options.rank));
  return mesh;
}

}  // namespace oktopk
