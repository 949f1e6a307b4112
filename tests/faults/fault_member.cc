// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/fault_member.h"

#include <algorithm>
#include <chrono>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk::faults {
namespace {

// Longer than the arbiter's grace and all faults of it.
constexpr Duration kPatience = std::chrono::minutes(30);

}  // namespace

FaultMember::FaultMember(ArbiterHost& host, int actor, double stall, int least)
    : host_(host),
      actor_(actor),
      stall_(stall),
      link_(std::make_shared<FaultLink>(host, actor, static_cast<std::uint64_t>(least))) {
  link_->when_given_up([this] {
    if (comm_ != nullptr) comm_->kill();
  });
  try {
    await_epoch(0);
  } catch (...) {
    link_->die(false);
    throw;
  }
}

FaultMember::~FaultMember() {
  link_->when_given_up({});
  // A process that was killed says nothing; its system may tell that it is gone.
  if (host_.scheduler().is_killed(actor_))
    link_->die(host_.scheduler().random().below(2) == 0);
  else
    link_->leave();
}

const Membership& FaultMember::regroup(std::uint64_t committed) {
  comm_->kill();  // whoever still waits in this epoch learns that it is over
  await_epoch(committed);
  return membership();
}

void FaultMember::await_epoch(std::uint64_t committed) {
  Scheduler& scheduler = host_.scheduler();
  const Duration begun = scheduler.now();
  const bool is_member = id() != 0;
  link_->want_epoch(committed);
  const auto has_come = [&] { return !link_->side().waits(); };
  const bool in_time = scheduler.wait(actor_, kPatience, has_come, "the arbiter");
  if (is_member && is_sound() && scheduler.now() - begun > host_.longest_answer())
    scheduler.failure(text_of("member ", id(), " waited ", in_seconds(scheduler.now() - begun), " s for the arbiter"));
  if (!in_time) fail<CommError>("actor ", actor_, ": ", link_->side().why_it_waits());
  if (!link_->side().refusal().empty()) fail<CommError>("member ", id(), ": ", link_->side().refusal());
  const Membership& mine = membership();
  const auto rank = static_cast<int>(std::ranges::find(mine.ids, id()) - mine.ids.begin());
  comm_ = std::make_unique<FaultCommunicator>(host_.network(), host_.world_of(mine), rank, stall_);
}

}  // namespace oktopk::faults
