// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/elastic_world.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous_arbiter.h"
#include "oktopk/comm/rendezvous_client.h"

namespace oktopk {
namespace {

class TcpElasticWorld final : public ElasticWorld {
 public:
  explicit TcpElasticWorld(const TcpElasticOptions& options)
      : options_(options.tcp),
        arbiter_({options_.rendezvous, options_.secret, options_.job, options_.encrypt, options_.join_timeout}) {
    require(options.least >= 1, "tcp: least = ", options.least, ", must be at least 1");
    const auto least = static_cast<std::uint64_t>(options.least);
    enter(join(least), 0);
  }

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return membership_; }

  const Membership& regroup(std::uint64_t committed) override {
    if (is_killed()) fail<CommError>("tcp: this member was closed");
    enter(report(committed), committed);
    return membership_;
  }

  // The arbiter sees the connection end.
  void leave() override { arbiter_.close(); }
  void kill() noexcept override {
    const std::lock_guard lock(mutex_);
    is_killed_ = true;
    if (comm_ != nullptr) comm_->kill();
  }
  void close_in_child() noexcept override {
    if (comm_ != nullptr) comm_->close_in_child();
    arbiter_.close_in_child();
  }

  // An arbiter that cannot be reached has no news; regroup() says so.
  bool has_joiners() override {
    try {
      return arbiter_.ask_once({.kind = RequestKind::candidates}, {}).number > 0;
    } catch (const CommError&) {
      return false;
    }
  }

 private:
  RendezvousRequest join(std::uint64_t least) {
    try {
      return arbiter_.ask_once({.kind = RequestKind::join, .number = least}, {});
    } catch (const CommError& error) {
      fail<CommError>(error.what(), find_reason());
    }
  }

  // Why nobody has let this member in, as far as the arbiter can tell; it does not wait there any more.
  std::string find_reason() {
    try {
      return "; " + arbiter_.ask_once({.kind = RequestKind::candidates}, {}).value;
    } catch (const CommError&) {
      return {};  // it cannot be reached
    }
  }

  RendezvousRequest report(std::uint64_t committed) {
    return arbiter_.ask_once({.kind = RequestKind::report, .number = committed}, {});
  }

  // Makes the communicator of the epoch that the arbiter decided. A member that died since then is a reason to ask
  // again.
  void enter(RendezvousRequest reply, std::uint64_t committed) {
    constexpr int kMostTries = 8;
    for (int tries = 1;; ++tries) {
      if (is_killed()) fail<CommError>("tcp: this member was closed");
      take(reply);
      try {
        connect();
        return;
      } catch (const CommError&) {
        if (tries == kMostTries) throw;
      }
      reply = report(committed);
    }
  }

  void take(const RendezvousRequest& reply) {
    if (reply.kind != RequestKind::membership)
      fail<CommError>("tcp: this member is not in the next epoch: ", reply.value);
    Membership next = read_membership(reply.value);
    // An epoch that did not come about: its changes count as changes of this one.
    if (!is_connected_ && membership_.epoch > 0) merge(next);
    membership_ = std::move(next);
    id_ = reply.number;
  }

  void merge(Membership& next) const {
    const auto is_in = [](const std::vector<MemberId>& list, MemberId id) {
      return std::ranges::find(list, id) != list.end();
    };
    std::erase_if(next.lost, [&](MemberId id) { return is_in(membership_.joined, id); });  // never seen by the caller
    next.lost.insert(next.lost.end(), membership_.lost.begin(), membership_.lost.end());
    for (const MemberId id : membership_.joined)
      if (is_in(next.ids, id)) next.joined.push_back(id);
    std::ranges::sort(next.lost);
    std::ranges::sort(next.joined);
    next.committed = std::max(next.committed, membership_.committed);
  }

  void connect() {
    is_connected_ = false;
    replace(nullptr);
    TcpOptions options = options_;
    options.size = static_cast<int>(membership_.ids.size());
    options.rank = static_cast<int>(std::ranges::find(membership_.ids, id_) - membership_.ids.begin());
    options.epoch = membership_.epoch;
    options.store = make_server_store(
        {options_.rendezvous, options_.secret, options_.job, options_.encrypt, options_.join_timeout});
    options.interface =
        options_.interface.empty() ? address_towards(parse_endpoint(options_.rendezvous)) : options_.interface;
    for (const MemberId id : membership_.ids) options.job += text_of("/", id);  // frames of others do not match
    // All of them have been told at once: whoever does not come soon is lost.
    options.join_timeout = std::min(options_.join_timeout, options_.silence);
    replace(make_tcp_world(options));
    is_connected_ = true;
  }

  bool is_killed() {
    const std::lock_guard lock(mutex_);
    return is_killed_;
  }

  void replace(std::unique_ptr<Communicator> next) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(comm_, next);
      if (is_killed_ && comm_ != nullptr) comm_->kill();
    }
    next.reset();  // its goodbye may take a while
  }

  const TcpOptions options_;
  RendezvousClient arbiter_;
  MemberId id_ = 0;
  Membership membership_;
  bool is_connected_ = false;
  std::mutex mutex_;  // guards the pointer, for kill(), and what follows
  std::unique_ptr<Communicator> comm_;
  bool is_killed_ = false;
};

}  // namespace

std::unique_ptr<ElasticWorld> make_tcp_elastic_world(const TcpElasticOptions& options) {
  return std::make_unique<TcpElasticWorld>(options);
}

}  // namespace oktopk
