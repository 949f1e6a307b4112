// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/tcp/listener.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

// The connections of one rank while its world gathers: a thread accepts the higher ranks, notices connections that
// close, so that a rank which died can come again, and agrees with all peers on who is in the world. Two starts of one
// job may share a rendezvous, and a rank may restart: then two ranks can be connected with different processes of a
// third. So each rank hashes the instances of all ranks that it is connected with (its view), and sends the hash to
// each of them. A world is complete when all views are equal: a rank whose P - 1 peers have its view is connected with
// exactly the processes that they are connected with. A view is 8 bytes, sent again when it changes. Frames follow it
// only after the world is complete, so nothing is read from a peer whose view is the one that it was sent.
// COST: P - 1 messages of 8 bytes per rank.
class TcpGathering {
 public:
  // `mixed_time`: how long views may differ while nothing changes.
  TcpGathering(TcpListener listener, int size, std::chrono::steady_clock::duration mixed_time)
      : listener_(std::move(listener)), mixed_time_(mixed_time), places_(static_cast<std::size_t>(size)) {
    thread_ = std::thread([this] { run(); });
  }
  ~TcpGathering() { stop(); }

  // A connection with a lower rank, which this rank made.
  void keep(TcpSession session) {
    const std::lock_guard lock(mutex_);
    put(std::move(session));
    agree();
    wake_.wake();
  }

  // Whether the world is complete; waits for it until the deadline, or until a lower rank is missing. CommError when
  // the world is mixed.
  bool is_complete(Deadline deadline) {
    std::unique_lock lock(mutex_);
    expect_one_start();
    while (!is_complete_ && !lower_is_missing() && Clock::now() < deadline) {
      changed_.wait_until(lock, deadline);
      expect_one_start();
    }
    return is_complete_;
  }

  // The next lower rank without a connection, by turns downwards.
  std::optional<int> next_missing() {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < rank(); ++i) {
      turn_ = turn_ == 0 ? rank() - 1 : turn_ - 1;
      if (!places_[turn_].session.socket.is_open()) return static_cast<int>(turn_);
    }
    return std::nullopt;
  }

  // The ranks that never came; if all came, those that broke off; if there are none, those that gave up.
  std::vector<int> missing() {
    const std::lock_guard lock(mutex_);
    std::vector<int> never, lost, gave_up;
    for (int r = 0; r < static_cast<int>(places_.size()); ++r) {
      const Place& place = places_[static_cast<std::size_t>(r)];
      if (place.session.socket.is_open() || static_cast<std::size_t>(r) == rank()) continue;
      (place.gave_up ? gave_up : place.came ? lost : never).push_back(r);
    }
    if (!never.empty()) return never;
    return lost.empty() ? gave_up : lost;
  }

  // Tells the others that this rank goes because it waited for others in vain: they are not to blame it.
  void give_up() {
    const std::lock_guard lock(mutex_);
    for (const Place& place : places_)
      if (place.session.socket.is_open()) tell(place, kGivesUp);
  }

  // Why this rank can accept no connections at present; empty if it can.
  std::string trouble() {
    const std::lock_guard lock(mutex_);
    return listener_.trouble();
  }

  // The ranks that are there but have not met all others.
  std::vector<int> undecided() {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (std::size_t r = 0; r < places_.size(); ++r)
      if (r != rank() && places_[r].got != view_) ranks.push_back(static_cast<int>(r));
    return ranks;
  }

  // The sessions by rank. REQUIRES: the world is complete.
  std::vector<TcpSession> take() {
    stop();
    std::vector<TcpSession> sessions;
    for (Place& place : places_) sessions.push_back(std::move(place.session));
    return sessions;
  }
  // The hash of all ranks' instances.
  std::uint64_t view() const { return view_; }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::uint64_t kNone = 0;
  // Instead of a view: the sender gives up, because its world is mixed. No frame begins so.
  static constexpr std::uint64_t kMixed = ~std::uint64_t{0};
  static constexpr std::uint64_t kGivesUp = kMixed - 1;

  struct Place {
    TcpSession session;
    bool came = false;
    bool gave_up = false;
    bool is_over = false;                     // closed, with bytes that wait for the world
    std::uint64_t sent = kNone, got = kNone;  // the last views on this connection

    bool may_have_frames() const { return got != kNone && got == sent; }
  };

  std::size_t rank() const { return static_cast<std::size_t>(listener_.identity().id); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
      wake_.wake();
    }
    if (thread_.joinable()) thread_.join();
  }

  void run() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (is_ending_ || is_complete_) return;
        fill();
      }
      // Half a handshake is dropped at its deadline, without an event.
      ::poll(entries_.data(), static_cast<nfds_t>(entries_.size()), 250);
      const std::lock_guard lock(mutex_);
      if (entries_[0].revents != 0) wake_.drain();
      if (is_ending_ || is_complete_) return;
      for (std::size_t i = 0; i < polled_.size(); ++i)
        if (entries_[i + 1].revents != 0) look_at(polled_[i], entries_[i + 1].revents);
      for (TcpSession& session : listener_.advance()) accept(std::move(session));
      agree();
      changed_.notify_all();
    }
  }

  void fill() {
    entries_.assign(1, {wake_.fd(), POLLIN, 0});
    polled_.clear();
    for (std::size_t r = 0; r < places_.size(); ++r) {
      const Place& place = places_[r];
      if (!place.session.socket.is_open() || place.is_over) continue;
      const int events = place.may_have_frames() ? POLLRDHUP : POLLIN | POLLRDHUP;
      entries_.push_back({place.session.socket.fd(), static_cast<short>(events), 0});
      polled_.push_back(r);
    }
    listener_.add_to(entries_);
  }

  void accept(TcpSession session) {
    if (session.id <= listener_.identity().id || session.id >= places_.size())
      return listener_.refuse(session.address, text_of("says that it is rank ", session.id));
    // Not the newer one in place of the older: two starts would push each other out for ever.
    if (places_[session.id].session.socket.is_open())
      return listener_.refuse(session.address, text_of("says that it is rank ", session.id, ", which is here already"));
    put(std::move(session));
  }

  void put(TcpSession session) {
    Place& place = places_[session.id];
    place = {.session = std::move(session), .came = true};
    changed_at_ = Clock::now();
  }

  // Reads the views of a peer, and notices its end.
  void look_at(std::size_t r, int events) {
    Place& place = places_[r];
    std::uint64_t view = kNone;
    while (true) {
      const auto count = ::recv(place.session.socket.fd(), &view, sizeof view, MSG_PEEK | MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
      if (count <= 0) return drop(place);
      if (count == sizeof view && view == kMixed) return note_stranger(r);
      if (count == sizeof view && view == kGivesUp) return drop(place, true);
      if (place.may_have_frames()) {
        place.is_over = (events & ~POLLIN) != 0;
        return;
      }
      if (count < static_cast<long>(sizeof view)) return;
      ::recv(place.session.socket.fd(), &view, sizeof view, MSG_DONTWAIT);
      place.got = view;
      changed_at_ = Clock::now();
    }
  }

  void drop(Place& place, bool gave_up = false) {
    place = {.session = {}, .came = true, .gave_up = gave_up};
    changed_at_ = Clock::now();
  }

  // Tells the peers the view of this rank, if it has one that they have not heard; the world may then be complete.
  void agree() {
    view_ = find_view();
    if (view_ == kNone) return;
    is_complete_ = true;
    for (std::size_t r = 0; r < places_.size(); ++r) {
      if (r == rank()) continue;
      Place& place = places_[r];
      if (std::exchange(place.sent, view_) != view_) {
        place.is_over = false;
        tell(place, view_);
      }
      is_complete_ = is_complete_ && place.got == view_;
    }
    if (!is_complete_) return;
    wake_.wake();
    changed_.notify_all();
  }

  // A connection that does not take 8 bytes is broken, which look_at() notices.
  static void tell(const Place& place, std::uint64_t view) {
    ::send(place.session.socket.fd(), &view, sizeof view, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  std::uint64_t find_view() const {
    std::vector<std::uint64_t> instances;
    for (std::size_t r = 0; r < places_.size(); ++r) {
      if (r != rank() && !places_[r].session.socket.is_open()) return kNone;
      instances.push_back(r == rank() ? listener_.identity().instance : places_[r].session.instance);
    }
    const TcpIdentity& mine = listener_.identity();
    const std::uint64_t view = hash_text(mine.job, hash_bytes(std::as_bytes(std::span(instances)), mine.epoch));
    return view == kNone || view >= kGivesUp ? 1 : view;
  }

  bool lower_is_missing() const {
    return std::any_of(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(rank()),
                       [](const Place& place) { return !place.session.socket.is_open(); });
  }

  void note_stranger(std::size_t r) {
    places_[r].is_over = true;
    if (stranger_.empty()) stranger_ = text_of("rank ", r, " (", places_[r].session.address, ")");
  }

  // CommError when the world is mixed and will stay so.
  void expect_one_start() {
    if (view_ != kNone && !is_complete_ && Clock::now() > changed_at_ + mixed_time_)
      for (std::size_t r = 0; r < places_.size(); ++r)
        if (r != rank() && places_[r].got != kNone && places_[r].got != view_) note_stranger(r);
    if (stranger_.empty()) return;
    for (const Place& place : places_)
      if (place.session.socket.is_open()) tell(place, kMixed);
    fail<CommError>("tcp: rank ", rank(), ": ", stranger_, " belongs to another start of job \"",
                    listener_.identity().job,
                    "\": it is connected with other processes than this rank. End one of the ",
                    "starts, or give them different jobs");
  }

  TcpListener listener_;
  const Clock::duration mixed_time_;
  WakePipe wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;        // by rank; the own one is empty
  std::vector<pollfd> entries_;      // of wake_, places, listener_
  std::vector<std::size_t> polled_;  // the places
  std::size_t turn_ = 0;
  std::uint64_t view_ = kNone;
  bool is_complete_ = false;
  bool is_ending_ = false;
  Clock::time_point changed_at_;
  std::string stranger_;  // a rank of another start
  std::thread thread_;
};

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
