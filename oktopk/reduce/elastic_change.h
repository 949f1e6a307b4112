// SPDX-License-Identifier: Apache-2.0
// The report of a change of members (elastic_reducer.h), and the statements that the members of a new epoch exchange.
// The report follows from who was in the epoch of the last committed step, who is in the epoch of the next one, and the
// statements. All members that were in both, and those that join, report the same.
//
// A lost member's residual is gone, and nobody else has ever seen it. Its size is known from the last time when the
// members measured and told each other: UnsentMeasure says after which step that was.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// The unsent values of one member after `step` committed steps. Sums are over the values, norms are Euclidean.
struct UnsentMeasure {
  std::uint64_t step = 0;
  double residual_norm = 0, residual_sum = 0;
  double memory_norm = 0, memory_sum = 0;
  std::uint64_t region_begin = 0, region_end = 0;  // of its owner memory
  friend bool operator==(const UnsentMeasure&, const UnsentMeasure&) = default;
};

// Where the owner memory of a lost member is.
enum class MemoryFate {
  none,       // it had none: no such residual rule, or no committed step
  recovered,  // on `heir`, all of it
  lost,       // the member that had the copy is lost, too, or there are no copies
};

struct MemberLoss {
  MemberId id = 0;
  MemoryFate memory = MemoryFate::none;
  MemberId heir = 0;                               // recovered: who has the memory now
  std::uint64_t region_begin = 0, region_end = 0;  // of the memory: exact if recovered, else as it was measured
  // Its residual is lost, and the gradient of the step that was not committed with it. This is what was known of both
  // residual and memory.
  UnsentMeasure unsent;
  friend bool operator==(const MemberLoss&, const MemberLoss&) = default;
};

// One change of the members. It is reported with the first step that is committed after it, so that all members report
// the same; several changes without a step between them are one.
struct MembershipChange {
  std::uint64_t epoch = 0;
  std::vector<MemberId> lost;      // died, or were given up
  std::vector<MemberId> joined;    // they begin with nothing unsent
  std::uint64_t step = 0;          // steps that were committed before it
  int P = 0;                       // members now
  std::vector<MemberId> left;      // in good order: others have all that they had unsent
  std::vector<MemberLoss> losses;  // one for each of `lost`
  friend bool operator==(const MembershipChange&, const MembershipChange&) = default;
};

// The members at the last committed step, by rank, in increasing order.
struct MemberBase {
  std::uint64_t epoch = 0;
  std::vector<MemberId> ids;
  std::vector<UnsentMeasure> measures;  // by rank
  bool has_memory = false;              // owners remember
  bool has_mirrors = false;

  // The member that has a copy of the memory of `id`; 0: nobody.
  MemberId holder_of(MemberId id) const;
};

// One member of a new epoch says what it has.
struct Statement {
  std::uint64_t actions = 0;                       // committed, and 1; 0: it has no state yet
  bool is_parting = false;                         // it has made its last step
  UnsentMeasure measure;                           // the last one
  MemberId mirrored = 0;                           // it has a copy of this member's memory
  std::uint64_t region_begin = 0, region_end = 0;  // of that copy
  std::vector<MemberId> received;                  // it has everything that these had unsent
};

// Collective: the statements of all members, by rank. Each carries a hash.
std::vector<Statement> exchange_statements(Communicator& comm, const Statement& mine);
// Whether a member has everything that `id` had unsent.
bool is_received(std::span<const Statement> statements, MemberId id);

// `change` brings epoch, step and P.
MembershipChange describe_change(MembershipChange change, const MemberBase& base, std::span<const MemberId> ids,
                                 std::span<const Statement> statements);

}  // namespace oktopk
