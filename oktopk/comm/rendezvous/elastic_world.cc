// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/elastic_world.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/rendezvous/member.h"

namespace oktopk {
namespace {

class TcpElasticWorld final : public ElasticWorld {
 public:
  explicit TcpElasticWorld(const TcpElasticOptions& options) : options_(options.tcp) {
    require(options.least >= 1, "tcp: least = ", options.least, ", must be at least 1");
    link_ = std::make_unique<MemberLink>(MemberLink::Options{
        .server = {options_.rendezvous, options_.secret, options_.job, options_.encrypt, options_.join_timeout},
        .least = static_cast<std::uint64_t>(options.least),
        .look = options_.look,
        .expel = [this] { kill_exchanges(); }});
    enter(0);
  }
  ~TcpElasticWorld() override {
    if (!mark_.is_forked()) return;
    link_->close_in_child();
    leak(std::move(link_));
  }

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return membership_; }

  const Membership& regroup(std::uint64_t committed) override {
    if (mark_.is_forked()) fail<UsageError>("tcp: this process was forked from a member, and is none itself");
    enter(committed);
    return membership_;
  }

  void leave() override {
    if (!mark_.is_forked()) link_->leave();
  }
  void kill() noexcept override {
    if (mark_.is_forked()) return;
    link_->kill();
    kill_exchanges();
  }
  void close_in_child() noexcept override {
    if (comm_ != nullptr) comm_->close_in_child();
    link_->close_in_child();
  }

  bool has_joiners() override { return !mark_.is_forked() && link_->has_joiners(); }
  std::vector<std::string> take_notes() override {
    return mark_.is_forked() ? std::vector<std::string>() : link_->take_notes();
  }

 private:
  // Makes the communicator of the epoch that the arbiter decides. A member that died since then is a reason to ask
  // again.
  void enter(std::uint64_t committed) {
    constexpr int kMostTries = 8;
    for (int tries = 1;; ++tries) {
      link_->await_epoch(committed);
      take(link_->membership());
      try {
        connect();
        return;
      } catch (const CommError&) {
        if (tries == kMostTries) throw;
      }
    }
  }

  void take(Membership next) {
    // An epoch that did not come about: its changes count as changes of this one.
    if (!is_connected_ && membership_.epoch > 0) merge(next);
    membership_ = std::move(next);
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
    options.rank = static_cast<int>(std::ranges::find(membership_.ids, link_->id()) - membership_.ids.begin());
    options.epoch = membership_.epoch;
    options.store = make_server_store(
        {options_.rendezvous, options_.secret, options_.job, options_.encrypt, options_.join_timeout});
    options.interface =
        options_.interface.empty() ? address_towards(parse_endpoint(options_.rendezvous)) : options_.interface;
    options.job += text_of("/", membership_.run);  // frames of others do not match
    for (const MemberId id : membership_.ids) options.job += text_of("/", id);
    // All of them have been told at once: whoever does not come soon is lost.
    options.join_timeout = std::min(options_.join_timeout, options_.silence);
    replace(make_tcp_world(options));
    is_connected_ = true;
  }

  // The exchanges of this epoch and of later ones end.
  void kill_exchanges() noexcept {
    const std::lock_guard lock(mutex_);
    is_killed_ = true;
    if (comm_ != nullptr) comm_->kill();
  }

  void replace(std::unique_ptr<Communicator> next) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(comm_, next);
      if (is_killed_ && comm_ != nullptr) comm_->kill();
    }
    next.reset();  // its goodbye may take a while
  }

  const ProcessMark mark_;
  const TcpOptions options_;
  Membership membership_;
  bool is_connected_ = false;
  std::mutex mutex_;  // guards the pointer, for kill(), and what follows
  std::unique_ptr<Communicator> comm_;
  bool is_killed_ = false;
  std::unique_ptr<MemberLink> link_;  // ends first: its thread may kill the exchanges
};

}  // namespace

std::unique_ptr<ElasticWorld> make_tcp_elastic_world(const TcpElasticOptions& options) {
  return std::make_unique<TcpElasticWorld>(options);
}

}  // namespace oktopk
