// SPDX-License-Identifier: Apache-2.0
// A job whose ranks change: members fail, leave and join. A member has one communicator at a time, for one epoch. When
// it fails, or when somebody waits to join, all members that live call regroup(): the membership of the next epoch is
// decided once, by an arbiter outside of the ranks, and everyone gets the same answer. A member that the arbiter has
// given up (paused for too long, cut off) learns it from a CommError and can only join anew, under a new id. A member
// whose connection to the arbiter breaks, or whose arbiter is gone or stopped, trains on and comes back to it.
//
// Steps (elastic/elastic_reducer.h): a member votes for a step when its exchange is complete, and commits it when it
// knows that all have voted. If the agreement itself breaks, some members may have committed and others not. Members
// therefore tell regroup() how many steps they have committed, and the answer has the largest number: whoever voted for
// that step commits it, too. This is safe because nobody commits before everybody has voted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

// A number for each member, never given twice in a job.
using MemberId = std::uint64_t;

struct Membership {
  std::uint64_t epoch = 0;       // 1, 2, ...
  std::vector<MemberId> ids;     // by rank, increasing
  std::vector<MemberId> lost;    // were in the last epoch and are not in this one
  std::vector<MemberId> joined;  // are new in this one; all of them in the first epoch
  std::uint64_t committed = 0;   // the largest number that a member brought to regroup()
  std::uint64_t run = 0;         // a random number: all epochs from one start of the job on have the same
  MemberId last_id = 0;          // the largest id that was given in this run
};

class ElasticWorld {
 public:
  virtual ~ElasticWorld() = default;

  // The communicator of this epoch. It is dead after a failure, until regroup() replaces it: references end there.
  virtual Communicator& comm() = 0;
  virtual const Membership& membership() const = 0;

  // Collective over the members that live. `committed`: calls (steps, and a caller's own collectives) that this member
  // has committed; 0 where it has just joined. A member that neither comes nor answers within a stated time is lost.
  // CommError when this member is not in the next epoch, or when the arbiter cannot be reached in time; the world is
  // then at its end.
  virtual const Membership& regroup(std::uint64_t committed) = 0;

  // Whether somebody waits to join, as far as this member has heard. Local, and never waits; may differ from rank to
  // rank.
  virtual bool has_joiners() = 0;

  // Lines for a person about what no call reports, since the last call: the arbiter cannot be reached, or can again.
  virtual std::vector<std::string> take_notes() { return {}; }

  // This member goes for good, and nobody needs its word any more: the arbiter waits for it no longer. Local. No other
  // call may follow.
  virtual void leave() {}

  // Ends the exchanges in comm() of another thread, and makes no further epoch. Local.
  virtual void kill() noexcept { comm().kill(); }

  // In a child of fork(): closes the inherited descriptors. Takes no lock and sends nothing.
  virtual void close_in_child() noexcept {}
};

// A job over TCP. The arbiter is a RendezvousServer outside of the ranks: `oktopk run` serves one. A thread of each
// member keeps in touch with it, so that no step waits for the arbiter (decision 0029).
struct TcpElasticOptions {
  // rendezvous is host:port of the server. rank, size, store and epoch are not read.
  TcpOptions tcp;
  // The first epoch begins when so many have joined.
  int least = 1;
};

// Joins the job and returns when this member is in an epoch, for which it waits up to join_timeout.
std::unique_ptr<ElasticWorld> make_tcp_elastic_world(const TcpElasticOptions& options);

}  // namespace oktopk
