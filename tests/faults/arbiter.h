// SPDX-License-Identifier: Apache-2.0
// The simulated arbiter of a world whose ranks change (comm/elastic_world.h), and a member of it. Requests and answers
// take random times: a member may die after it asked and still be in the next epoch, and a member that was paused may
// come when the others have gone on without it. The arbiter decides when all members of the epoch have asked or left,
// or when its patience with the missing ones is over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "oktopk/comm/elastic_world.h"
#include "tests/faults/fault_communicator.h"
#include "tests/faults/network.h"

namespace oktopk::faults {

class Arbiter {
 public:
  explicit Arbiter(Network& network) : network_(network) {}

  // The answer to one member; no world: it is not in the next epoch.
  struct Answer {
    Membership membership;
    World* world = nullptr;
    int rank = 0;
  };

  // The first epoch, of these actors; ids count from 1.
  void found(const std::vector<int>& actors);
  const Answer& founded(MemberId id) const { return first_.at(id); }

  // By a member, its actor or an event: a request that travels. The answer arrives in `*answer` later, if it lives.
  void ask(MemberId id, std::uint64_t epoch, std::uint64_t committed,
           const std::shared_ptr<std::optional<Answer>>& answer);
  MemberId ask_to_join(int actor, const std::shared_ptr<std::optional<Answer>>& answer);
  void leave(MemberId id);
  bool has_joiners() const { return !joiners_.empty(); }
  const std::vector<Membership>& epochs() const { return epochs_; }
  Network& network() { return network_; }

 private:
  using Reply = std::shared_ptr<std::optional<Answer>>;
  struct Request {
    std::uint64_t committed;
    Reply reply;
  };

  Duration travel();
  void arrive(MemberId id, std::uint64_t epoch, const Request& request);
  void look(std::uint64_t epoch, bool is_patient);
  void decide();
  void answer(const Reply& reply, const Answer& answer);

  Network& network_;
  MemberId last_id_ = 0;
  std::map<MemberId, int> actors_;
  std::vector<Membership> epochs_;  // all that were decided
  std::map<MemberId, Answer> first_;
  std::map<MemberId, Request> asked_;
  std::map<MemberId, Reply> joiners_;
  std::set<MemberId> left_;
};

class FaultMember final : public ElasticWorld {
 public:
  // A member of the first epoch.
  FaultMember(Arbiter& arbiter, MemberId id, int actor, double stall);
  // A member that joins: waits until the others let it in. CommError when they do not within a day.
  FaultMember(Arbiter& arbiter, int actor, double stall);
  ~FaultMember() override;

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return membership_; }
  const Membership& regroup(std::uint64_t committed) override;
  bool has_joiners() override { return arbiter_.has_joiners(); }
  void leave() override { arbiter_.leave(id_); }
  MemberId id() const { return id_; }

 private:
  void take(const Arbiter::Answer& answer);
  void await(const std::shared_ptr<std::optional<Arbiter::Answer>>& answer);

  Arbiter& arbiter_;
  MemberId id_ = 0;
  int actor_;
  double stall_;
  Membership membership_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace oktopk::faults
