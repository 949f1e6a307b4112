// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/mesh.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/gathering.h"
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

std::string key_of(const TcpOptions& options, int rank) {
  return text_of("oktopk/", options.job, "/", options.epoch, "/", rank);
}

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
    try {
      place.socket = listen_at({"::", "0"});
    } catch (const AddressError&) {  // a host without IPv6
      place.socket = listen_at({"0.0.0.0", "0"});
    }
  }
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

// Connects to lower ranks, one try at a time.
class LowerRanks {
 public:
  LowerRanks(const KeyValueStore& store, const TcpOptions& options, const TcpIdentity& mine, Deadline deadline)
      : store_(store), options_(options), mine_(mine), deadline_(deadline), tries_(static_cast<std::size_t>(mine.id)) {}

  // Waits for the rank's entry for one turn, and tries its addresses once.
  std::optional<TcpSession> try_once(int rank) {
    Tries& tries = tries_[static_cast<std::size_t>(rank)];
    // A connection that was made and closed again: the rank gives up, or has another one for this rank.
    if (tries.connections > 0) pause(kRetryPause * (1 << std::min(tries.connections, kMostDoublings)));
    // All of them have their turn in the first half of the time.
    const auto turn = std::min(kLongestTurn, options_.join_timeout / (2 * options_.rank));
    const auto entry = store_.get(key_of(options_, rank), std::min<MeshClock::duration>(turn, left()));
    if (!entry.has_value()) return std::nullopt;
    for (const TcpTarget& target : read_entry(*entry, rank)) try {
        auto session =
            connect_session(target, mine_, std::min<Deadline>(deadline_, MeshClock::now() + kMostPerAddress));
        ++tries.connections;
        tries.why = "closed the connection while the ranks gathered";
        return session;
      } catch (const CommError& error) {
        tries.why = error.what();
      }
    pause(kRetryPause);
    return std::nullopt;
  }

  // Why the last try failed.
  const std::string& why(int rank) const { return tries_[static_cast<std::size_t>(rank)].why; }

 private:
  static constexpr int kMostDoublings = 5;

  struct Tries {
    std::string why = "did not come to the rendezvous";
    int connections = 0;
  };

  MeshClock::duration left() const { return std::max<MeshClock::duration>(deadline_ - MeshClock::now(), kShortestGet); }
  void pause(MeshClock::duration time) const { std::this_thread::sleep_for(std::min(time, left())); }

  const KeyValueStore& store_;
  const TcpOptions& options_;
  const TcpIdentity& mine_;
  const Deadline deadline_;
  std::vector<Tries> tries_;  // by rank
};

KeyValueStore open_store_itself(const TcpOptions& options) {
  if (options.store.has_value()) return *options.store;
  if (is_file(options)) return make_file_store(options.rendezvous.substr(kFilePrefix.size()));
  return make_server_store({options.rendezvous, options.secret, options.job, options.encrypt, options.join_timeout});
}

// A store whose errors say which rank could not join.
KeyValueStore open_store(const TcpOptions& options) {
  const auto named = [who = text_of("tcp: rank ", options.rank, " could not join within ",
                                    in_seconds(options.join_timeout), " s: ")](const auto& act) {
    try {
      return act();
    } catch (const CommError& error) {
      fail<CommError>(who, error.what());
    }
  };
  KeyValueStore store = open_store_itself(options);
  store.set = [named, set = store.set](const std::string& key, const std::string& value) {
    named([&] { set(key, value); });
  };
  store.get = [named, get = store.get](const std::string& key, Communicator::Duration timeout) {
    return named([&] { return get(key, timeout); });
  };
  return store;
}

// Rank 0 serves the store where nobody does.
std::unique_ptr<RendezvousServer> serve_if_first(const TcpOptions& options) {
  if (!is_server(options) || options.rank != 0) return nullptr;
  try {
    return std::make_unique<RendezvousServer>(
        RendezvousServerOptions{options.rendezvous, options.secret, options.job, options.encrypt});
  } catch (const AddressError&) {
    return nullptr;  // somebody else serves there
  }
}

// Says who is to blame that the world is not complete in time.
[[noreturn]] void fail_incomplete(TcpGathering& gathering, const LowerRanks& lower, const TcpOptions& options) {
  const std::string head = text_of("tcp: rank ", options.rank);
  const double seconds = in_seconds(options.join_timeout);
  const std::vector<int> missing = gathering.missing();
  gathering.give_up();
  const std::string trouble = gathering.trouble();
  std::string reasons, higher, undecided;
  for (const int rank : missing) {
    if (rank < options.rank) reasons += text_of(reasons.empty() ? "rank " : "; rank ", rank, ": ", lower.why(rank));
    if (rank > options.rank) higher += text_of(higher.empty() ? " " : ", ", rank);
  }
  if (!reasons.empty()) fail<CommError>(head, " could not join within ", seconds, " s: ", reasons);
  if (!higher.empty())
    fail<CommError>(head, ": these ranks did not come within ", seconds, " s:", higher,
                    trouble.empty() ? "" : "; this rank ", trouble);
  for (const int rank : gathering.undecided()) undecided += text_of(undecided.empty() ? " " : ", ", rank);
  fail<CommError>(head, ": these ranks did not meet all others within ", seconds, " s:", undecided);
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
  TcpGathering gathering(TcpListener(std::move(place.socket), mine, options.refusals), options.size,
                         std::min(options.silence, options.join_timeout / 2));
  LowerRanks lower(store, options, mine, deadline);
  store.set(key_of(options, options.rank), entry);
  while (!gathering.is_complete(options.look ? std::min<Deadline>(deadline, MeshClock::now() + kLookTime) : deadline)) {
    if (MeshClock::now() >= deadline) fail_incomplete(gathering, lower, options);
    if (options.look) options.look();
    const auto rank = gathering.next_missing();
    auto session = rank.has_value() ? lower.try_once(*rank) : std::nullopt;
    if (session.has_value()) gathering.keep(std::move(*session));
  }
  mesh.sessions = gathering.take();
  mesh.membership = gathering.view();
  // Another start of the job may have written its own by now.
  const std::string key = key_of(options, options.rank);
  if (store.remove && store.get(key, kShortestGet) == entry) store.remove(key);
  return mesh;
}

}  // namespace oktopk
