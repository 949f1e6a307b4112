// SPDX-License-Identifier: Apache-2.0
// A member of a simulated elastic job: an ElasticWorld over a FaultLink and the simulated network. A member may die
// after it asked and still be in the next epoch, and one that was paused may come when the others have gone on.
#pragma once

#include <cstdint>
#include <memory>

#include "oktopk/comm/elastic_world.h"
#include "tests/faults/arbiter_host.h"
#include "tests/faults/fault_communicator.h"

namespace oktopk::faults {

class FaultMember final : public ElasticWorld {
 public:
  // By its actor: waits until it is in an epoch. CommError when the others do not let it in for half an hour. `least`:
  // members of a first epoch.
  FaultMember(ArbiterHost& host, int actor, double stall, int least);
  ~FaultMember() override;

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return link_->side().word().last; }
  const Membership& regroup(std::uint64_t committed) override;
  bool has_joiners() override { return link_->side().has_joiners(host_.now()); }
  void leave() override { link_->leave(); }
  MemberId id() const { return link_->side().word().id; }
  // It lives, and nothing has happened to it that others might take for a death.
  bool is_sound() { return host_.is_sound(*link_); }

 private:
  void await_epoch(std::uint64_t committed);

  ArbiterHost& host_;
  const int actor_;
  const double stall_;
  const std::shared_ptr<FaultLink> link_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace oktopk::faults
