// SPDX-License-Identifier: Apache-2.0
// A training job in the simulation: ranks make steps with error feedback and save their states; after a failure the
// launcher starts all ranks again from the newest complete set of states, in a new epoch, while processes that were
// paused in the old one may still revive. run_job() checks all along:
//   agreement   every step's update has the same bits on every rank, and again when the step is repeated
//   mass        all gradients together equal all updates and the final flush, exactly where sums are exact
//   courage     an attempt that fails had a fault; every error is a CommError that names a rank with a fault
//   calm        an attempt without a fault does not fail; nobody swallows the death of a rank; nothing hangs
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "tests/faults/plan.h"

namespace oktopk::faults {

// none: sums are not exact, or another law was broken. left_out: nobody knows what a member had unsent.
enum class MassCheck { none, made, left_out };

struct JobResult {
  std::vector<std::string> failures;  // empty: all laws hold
  std::vector<std::string> faults;    // that were drawn, by attempt
  std::string report;                 // the last events
  std::uint64_t history = 0;          // equal for equal runs
  std::uint64_t updates = 0;          // a hash of all updates
  MassCheck mass = MassCheck::none;   // of an elastic job
  std::uint64_t struck = 0;           // faults that struck
  std::uint64_t arbiter_struck = 0;   // faults of the arbiter
  std::uint64_t refused = 0;          // frames of an old epoch
  std::uint64_t refusals = 0;         // of members' steps, because of one member's gradient
  int attempts = 0;
};

// Puts a communicator of its own around the rank's: for planted bugs.
using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;

JobResult run_job(const Plan& plan, const Wrap& wrap = {});

// A training job with an ElasticReducer in the simulation: members crash, pause, lose connections, leave and join, and
// those that are left go on. run_elastic_job() checks all along:
//   agreement   a committed step has the same update, bit by bit, on every member that commits it
//   membership  all members of an epoch have got the same answer
//   reports     all members of an epoch report the same change, losses included
//   mass        gradients of all members of committed steps equal updates, what the members have unsent, and what the
//               reports say is lost: exact where sums are
//   progress    a member that was not given up ends with all steps
JobResult run_elastic_job(const Plan& plan);

}  // namespace oktopk::faults
