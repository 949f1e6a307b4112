// SPDX-License-Identifier: Apache-2.0
// An ElasticWorld of threads, for tests. The arbiter is a mutex: an epoch ends when every member that lives has called
// regroup(). A member can be told to die at its m-th message, counted over all epochs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/transports.h"
#include "tests/support/world.h"

namespace oktopk {

inline constexpr std::uint64_t kNeverDies = std::numeric_limits<std::uint64_t>::max();

class ElasticThreads {
 public:
  class Member;

  // A member of the first epoch, which has P of them; or one that joins, which waits for the next epoch.
  std::unique_ptr<Member> found(MemberId id, int P, std::uint64_t dies_at = kNeverDies);
  std::unique_ptr<Member> join(MemberId id, std::uint64_t dies_at = kNeverDies);

  bool has_joiners() {
    const std::lock_guard lock(mutex_);
    return !joiners_.empty();
  }
  // The member is gone: nobody waits for it any more.
  void lose(MemberId id) {
    const std::lock_guard lock(mutex_);
    alive_.erase(id);
    joiners_.erase(id);
    if (alive_.empty()) is_over_ = true;
    end_epoch();
    changed_.notify_all();
  }

 private:
  struct Seat {
    std::unique_ptr<Communicator> comm;
    Membership membership;
  };

  // Returns the member's place in the next epoch.
  Seat arrive(MemberId id, std::uint64_t committed) {
    std::unique_lock lock(mutex_);
    if (!alive_.contains(id)) fail<CommError>("elastic threads: member ", id, " is lost");
    arrived_[id] = committed;
    end_epoch();
    return await(lock, id);
  }
  Seat await(std::unique_lock<std::mutex>& lock, MemberId id) {
    const bool in_time =
        changed_.wait_for(lock, std::chrono::seconds(120), [&] { return seats_.contains(id) || is_over_; });
    if (!in_time || !seats_.contains(id)) fail<CommError>("elastic threads: no epoch for member ", id);
    Seat seat = std::move(seats_.at(id));
    seats_.erase(id);
    return seat;
  }
  void end_epoch() {
    if (alive_.empty() || arrived_.size() < alive_.size() || alive_.size() < least_) return;
    for (const MemberId id : alive_)
      if (!arrived_.contains(id)) return;
    least_ = 1;
    Membership next{.epoch = ++epoch_};
    for (const auto& [id, committed] : arrived_) next.committed = std::max(next.committed, committed);
    if (epoch_ > 1) alive_.insert(joiners_.begin(), joiners_.end());
    if (epoch_ > 1) joiners_.clear();
    next.ids.assign(alive_.begin(), alive_.end());
    std::ranges::set_difference(last_, next.ids, std::back_inserter(next.lost));
    std::ranges::set_difference(next.ids, last_, std::back_inserter(next.joined));
    last_ = next.ids;
    arrived_.clear();
    auto comms = make_thread_world(static_cast<int>(next.ids.size()), kTestTimeout);
    for (std::size_t r = 0; r < comms.size(); ++r) seats_[next.ids[r]] = {std::move(comms[r]), next};
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<MemberId> alive_, joiners_;
  std::map<MemberId, std::uint64_t> arrived_;
  std::map<MemberId, Seat> seats_;
  std::vector<MemberId> last_;
  std::uint64_t epoch_ = 0;
  std::size_t least_ = 1;  // members of the next epoch
  bool is_over_ = false;
};

class ElasticThreads::Member final : public ElasticWorld {
 public:
  Member(ElasticThreads& world, MemberId id, std::uint64_t dies_at) : world_(world), id_(id), dies_at_(dies_at) {}
  ~Member() override {
    seat_ = {};
    world_.lose(id_);
  }

  MemberId id() const { return id_; }
  std::uint64_t messages() const { return messages_; }
  void die_at(std::uint64_t message) { dies_at_ = message; }
  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return seat_.membership; }
  bool has_joiners() override { return world_.has_joiners(); }
  const Membership& regroup(std::uint64_t committed) override {
    take(world_.arrive(id_, committed));
    return seat_.membership;
  }
  void leave() override { world_.lose(id_); }
  void take(Seat seat) {
    comm_.reset();
    seat_ = std::move(seat);
    comm_ = std::make_unique<Mortal>(*this, *seat_.comm);
  }

 private:
  // Counts the messages to others, and dies in place of sending the one that is the last.
  class Mortal final : public ForwardingCommunicator {
   public:
    Mortal(Member& member, Communicator& inner) : ForwardingCommunicator(inner), member_(member) {}
    std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
      for (const Send& send : sends)
        if (send.peer != rank() && member_.messages_++ >= member_.dies_at_) die();
      return inner().begin(sends, recvs);
    }
    std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }

   private:
    [[noreturn]] void die() {
      member_.world_.lose(member_.id_);
      inner().kill();
      fail<CommError>("member ", member_.id_, " dies");
    }
    Member& member_;
  };

  ElasticThreads& world_;
  MemberId id_;
  std::uint64_t dies_at_;
  std::uint64_t messages_ = 0;
  Seat seat_;
  std::unique_ptr<Mortal> comm_;
};

inline std::unique_ptr<ElasticThreads::Member> ElasticThreads::found(MemberId id, int P, std::uint64_t dies_at) {
  auto member = std::make_unique<Member>(*this, id, dies_at);
  std::unique_lock lock(mutex_);
  if (epoch_ == 0) least_ = static_cast<std::size_t>(P);
  alive_.insert(id);
  arrived_[id] = 0;
  end_epoch();
  member->take(await(lock, id));
  return member;
}

inline std::unique_ptr<ElasticThreads::Member> ElasticThreads::join(MemberId id, std::uint64_t dies_at) {
  auto member = std::make_unique<Member>(*this, id, dies_at);
  std::unique_lock lock(mutex_);
  joiners_.insert(id);
  member->take(await(lock, id));
  return member;
}

}  // namespace oktopk
