// SPDX-License-Identifier: Apache-2.0
// Ranks compare notes before they change anything, so that one rank's bad input is the same clear
// error on every rank instead of a timeout on the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

enum class Severity : std::uint32_t { fine, skippable, error };

// What a rank found.
struct Note {
  Severity severity = Severity::fine;
  std::string text = {};
};

// Collective. Returns the gravest of the ranks' notes, the first rank's among equals, the same on
// every rank; its text says whose it is. Texts of more than 476 characters are cut.
// COST: ceil(log2 P) messages of a few bytes; as many again, with the texts, when there is trouble.
Note compare_notes(Communicator& comm, const Note& mine, Workspace& work);

// Collective: runs `act` on every rank; when it throws a UsageError on one, every rank throws it.
template <class Act>
void agree_on_success(Communicator& comm, Workspace& work, const Act& act) {
  Note note;
  try {
    act();
  } catch (const UsageError& error) {
    note = {Severity::error, error.what()};
  }
  note = compare_notes(comm, note, work);
  require(note.severity == Severity::fine, note.text);
}

// Collective: whether `owns`, asked where there are as many states as ranks, is true on every rank.
template <class Owns>
bool all_own(Communicator& comm, Workspace& work, std::size_t count, const Owns& owns) {
  std::uint32_t mine = 0;
  try {
    mine = count == static_cast<std::size_t>(comm.size()) && owns() ? 1 : 0;
  } catch (const UsageError&) {
    // A state that cannot be read is found by whoever reads it next.
  }
  return allreduce_small(comm, mine, Reduction::min, work) == 1;
}

// Advice in words for the caller of an object whose step failed half-way.
std::string_view way_out(bool is_comm_dead);

// What compare_notes() adds to a step in which all is well.
Cost notes_cost(int P);

}  // namespace oktopk
