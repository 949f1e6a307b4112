// SPDX-License-Identifier: Apache-2.0
// The server of a rendezvous: one thread that never waits for a client. Keys and values live in memory, up to
// kMostStoreBytes in all.
#include <poll.h>

#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/rendezvous_arbiter.h"
#include "oktopk/comm/rendezvous_request.h"
#include "oktopk/comm/tcp_listener.h"
#include "oktopk/comm/tcp_stream.h"
#include "oktopk/comm/transport_support.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

using ServerClock = std::chrono::steady_clock;

constexpr std::size_t kMostStoreBytes = std::size_t{64} << 20;
constexpr std::size_t kMostClients = 8192;

}  // namespace

// A connection that has proved itself: requests in, replies out, and the key that it waits for.
class StoreClient {
 public:
  explicit StoreClient(TcpSession session) : address_(session.address), stream_(std::move(session)) {}

  const std::string& address() const { return address_; }
  void close_in_child() { stream_.close(); }
  pollfd entry() const { return {stream_.fd(), static_cast<short>(wants_write_ ? POLLIN | POLLOUT : POLLIN), 0}; }

  // The next complete request, if one is there.
  bool read(RendezvousRequest& request) {
    if (in_.size() < kRequestLengthBytes) in_.resize(kRequestLengthBytes);
    if (!fill()) return false;
    const std::uint32_t length = read_request_length(in_.data());
    if (in_.size() == kRequestLengthBytes) in_.resize(kRequestLengthBytes + length);
    if (!fill()) return false;
    request = read_request({reinterpret_cast<const char*>(in_.data()) + kRequestLengthBytes, length});
    in_.clear();
    read_ = 0;
    return true;
  }

  void reply(const RendezvousRequest& reply) {
    if (out_.size() > 2 * kMostRequestBytes) fail<CommError>("reads no replies");
    const Bytes bytes = write_request(reply);
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    write();
  }

  void write() {
    while (!out_.empty()) {
      const std::size_t count = stream_.write(out_, {});
      if (count == 0) break;
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(count));
    }
    const bool is_flushed = stream_.flush();
    wants_write_ = !out_.empty() || !is_flushed;
  }

  // The key that the client waits for; empty if none.
  std::string wanted;
  Deadline deadline;
  // The member of an elastic job, and whether it waits for an epoch.
  MemberId member = 0;
  bool waits_for_epoch = false;

 private:
  bool fill() {
    while (read_ < in_.size()) {
      const std::size_t count = stream_.read(std::span(in_).subspan(read_));
      if (count == 0) return false;
      read_ += count;
    }
    return true;
  }

  std::string address_;
  TcpStream stream_;
  Bytes in_, out_;
  std::size_t read_ = 0;
  bool wants_write_ = false;
};

class RendezvousServer::Service {
 public:
  explicit Service(const RendezvousServerOptions& options)
      : listener_(listen_at(parse_endpoint(options.listen)),
                  {.secret = options.secret,
                   .job = options.job,
                   .purpose = TcpPurpose::store,
                   .encrypt = options.encrypt,
                   .host = host_identity()},
                  refusals_),
        arbiter_(options.grace),
        address_(Endpoint{parse_endpoint(options.listen).host, local_port(listener_.socket())}.text()) {
    thread_ = std::thread([this] { run(); });
  }
  ~Service() {
    stop_.wake();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  const RefusalLog& refusals() const { return *refusals_; }
  bool is_forked() const { return mark_.is_forked(); }
  void close_in_child() {
    listener_.close_in_child();
    for (const auto& client : clients_) client->close_in_child();
    stop_.close();
  }

 private:
  void run() {
    std::vector<pollfd> entries;
    while (true) {
      entries.assign(1, {stop_.fd(), POLLIN, 0});
      listener_.add_to(entries);
      for (const auto& client : clients_) entries.push_back(client->entry());
      ::poll(entries.data(), static_cast<nfds_t>(entries.size()), milliseconds_until(next_deadline()));
      if (entries[0].revents != 0) return;
      for (TcpSession& session : listener_.advance()) {
        if (clients_.size() < kMostClients)
          clients_.push_back(std::make_unique<StoreClient>(std::move(session)));
        else
          listener_.refuse(session.address, "found all places taken");
      }
      serve_all();
      serve_all();  // once more: a client that was served first may wait for a key that a later one wrote
      publish();
    }
  }

  void serve_all() {
    std::erase_if(clients_, [&](const auto& client) {
      if (serve(*client)) return false;
      if (client->member != 0) arbiter_.lose(client->member);
      return true;
    });
  }

  // Tells the members of the next epoch, if it is decided.
  void publish() {
    const std::optional<Membership> next = arbiter_.decide(ServerClock::now());
    if (!next.has_value()) return;
    const std::string text = write_membership(*next);
    for (const auto& client : clients_) {
      if (!std::exchange(client->waits_for_epoch, false)) continue;
      try {
        client->reply({.kind = RequestKind::membership, .number = client->member, .value = text});
      } catch (const CommError& error) {
        listener_.refuse(client->address(), error.what());  // the next serve() finds the same
      }
    }
  }

  // At least four times a second: half a handshake is dropped at its deadline, without an event.
  Deadline next_deadline() const {
    Deadline next = ServerClock::now() + std::chrono::milliseconds(250);
    for (const auto& client : clients_)
      if (!client->wanted.empty()) next = std::min(next, client->deadline);
    return next;
  }

  // False when the connection is over.
  bool serve(StoreClient& client) {
    try {
      client.write();
      RendezvousRequest request;
      while (client.read(request)) obey(client, request);
      look_for_wanted(client);
      return true;
    } catch (const CommError& error) {
      if (std::string_view(error.what()) != "closed the connection") listener_.refuse(client.address(), error.what());
      return false;
    }
  }

  void obey(StoreClient& client, RendezvousRequest& request) {
    if (request.kind == RequestKind::set) {
      set(request);
      return client.reply({.kind = RequestKind::done});
    }
    if (request.kind == RequestKind::join) return join(client, request);
    if (request.kind == RequestKind::report) return report(client, request);
    if (request.kind == RequestKind::candidates)
      return client.reply(
          {.kind = RequestKind::candidates, .number = arbiter_.candidates(), .value = arbiter_.why_it_waits()});
    if (request.kind != RequestKind::get || !client.wanted.empty() || request.key.empty())
      fail<CommError>("sent a request that there is not");
    const auto most = static_cast<std::uint64_t>(in_seconds(kLongestTimeout) * 1000);
    client.wanted = request.key;
    client.deadline = ServerClock::now() + std::chrono::milliseconds(std::min(request.number, most));
    look_for_wanted(client);
  }

  void join(StoreClient& client, const RendezvousRequest& request) {
    if (client.member != 0) fail<CommError>("joined twice");
    client.member = arbiter_.join(request.number);
    client.waits_for_epoch = true;
  }

  void report(StoreClient& client, const RendezvousRequest& request) {
    client.waits_for_epoch = arbiter_.report(client.member, request.number, ServerClock::now());
    if (client.waits_for_epoch) return;
    client.reply({.kind = RequestKind::refused, .value = "it was given up, and can only join anew"});
  }

  void set(RendezvousRequest& request) {
    std::string& value = values_[request.key];
    bytes_ += request.key.size() + request.value.size() - value.size();
    value = std::move(request.value);
    if (bytes_ > kMostStoreBytes) fail<CommError>("wrote more than ", kMostStoreBytes, " bytes into the store");
  }

  void look_for_wanted(StoreClient& client) {
    if (client.wanted.empty()) return;
    const auto at = values_.find(client.wanted);
    const bool is_late = ServerClock::now() >= client.deadline;
    if (at == values_.end() && !is_late) return;
    client.wanted.clear();
    client.reply(at == values_.end() ? RendezvousRequest{.kind = RequestKind::nothing}
                                     : RendezvousRequest{.kind = RequestKind::value, .value = at->second});
  }

  const ProcessMark mark_;
  const std::shared_ptr<RefusalLog> refusals_ = std::make_shared<RefusalLog>();
  TcpListener listener_;
  Arbiter arbiter_;
  const std::string address_;
  WakePipe stop_;
  std::vector<std::unique_ptr<StoreClient>> clients_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::thread thread_;
};

RendezvousServer::RendezvousServer(const RendezvousServerOptions& options) {
  require(options.secret.size() >= kLeastSecretBytes, "rendezvous: the secret has ", options.secret.size(),
          " bytes, must have at least ", kLeastSecretBytes);
  service_ = std::make_unique<Service>(options);
}
RendezvousServer::~RendezvousServer() {
  if (!service_->is_forked()) return;
  service_->close_in_child();
  leak(std::move(service_));
}

std::string RendezvousServer::address() const { return service_->address(); }
const RefusalLog& RendezvousServer::refusals() const { return service_->refusals(); }

}  // namespace oktopk
