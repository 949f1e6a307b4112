// SPDX-License-Identifier: Apache-2.0
// How the report of a change of members (MembershipChange of elastic_reducer.h) is made, and the statements that the
// members of a new epoch exchange. The report follows from who was in the epoch of the last committed step, who is in
// the epoch of the next one, and the statements. All members that were in both, and those that join, report the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/elastic/elastic_reducer.h"

namespace oktopk {

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

inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;  // of state and of unsent values

struct Handover {
  int from = 0, to = 0;  // ranks
};

// A member that leaves gives all that it has unsent to another one, in pieces with a hash each. Collective, so that
// nobody waits for longer than a piece takes: `values`, of the same size on both, become those of the giver. The other
// ranks' are not touched. COST: 4n bytes between the two, and a barrier per piece.
void hand_over(Communicator& comm, const Handover& handover, std::span<float> values, std::size_t n);

}  // namespace oktopk
