// SPDX-License-Identifier: Apache-2.0
// Ranks compare notes before they change anything, so that a bad input of one rank is the same clear error on every
// rank instead of a timeout on the others. Also the words for what can be wrong with a gradient.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/device/device.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

class UpdateCheck;

enum class Severity : std::uint32_t { fine, skippable, error };

// One rank's finding.
struct Note {
  Severity severity = Severity::fine;
  std::string text = {};
};

// The call that a rank makes, and the steps that it has made before. All ranks must make the same one.
struct Call {
  enum class Kind : std::uint32_t { other, step, flush, load, load_all };
  Kind kind = Kind::other;
  std::uint64_t steps = 0;
  bool has_hash = false;   // equal on all ranks: `hash` is compared, too (update_check.h)
  std::uint64_t hash = 0;  // of the last update
};

// Collective. Returns the gravest note of all ranks, the first rank's among equals, the same on every rank; its text
// names the rank. Texts of more than 476 characters are cut. UsageError on every rank when they make different calls;
// Divergence when the hashes differ.
// COST: ceil(log2 P) messages of a few bytes; as many again, with the texts, when there is trouble.
Note compare_notes(Communicator& comm, const Note& mine, Workspace& work, const Call& call = {});

// Collective: runs `act` on every rank; when it throws a UsageError on one rank, every rank throws it.
template <class Act>
void agree_on_success(Communicator& comm, Workspace& work, const Act& act, const Call& call = {}) {
  Note note;
  try {
    act();
  } catch (const UsageError& error) {
    note = {Severity::error, error.what()};
  }
  note = compare_notes(comm, note, work, call);
  require(note.severity == Severity::fine, note.text);
}

// Collective, for load_all(): whether there are `count` ranks and `owns` is true on every one. A UsageError of `owns`
// counts as false: the reader of a damaged state meets it again.
template <class Owns>
bool all_own(Communicator& comm, Workspace& work, std::size_t count, const Owns& owns) {
  compare_notes(comm, {}, work, {Call::Kind::load_all});
  std::uint32_t mine = 0;
  try {
    mine = count == static_cast<std::size_t>(comm.size()) && owns() ? 1 : 0;
  } catch (const UsageError&) {
  }
  return allreduce_small(comm, mine, Reduction::min, work) == 1;
}

// Advice for the caller of an object whose step failed half-way.
std::string_view way_out(bool is_comm_dead);

// The cost of compare_notes() in a step without trouble; `share`: in one of so many steps.
Cost notes_cost(int P, bool has_hash = false, double share = 1);
// The notes of a step with these options: expected, and at most.
Prediction notes_cost(int P, const ReducerOptions& options);

// The fewest digits that give the same number again, in every locale.
template <class T>
std::string digits(T x) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x).ptr;
  return {text.data(), end};
}

// Says why scale * gradient does not fit a residual of n values. An empty gradient is fine.
Note inspect_size(Gradient gradient, float scale, std::size_t n);
// The same, and a pass over the gradient: skippable when an entry is not finite.
Note inspect_values(const Device& device, Gradient gradient, float scale, std::size_t n);

// The input of a step on this rank, before anything has changed.
struct StepInput {
  Gradient gradient;
  float scale;
  std::size_t n;  // of the residual
  const Device& device;
  NanPolicy policy;
  Workspace& work;
  std::uint64_t steps = 0;  // made before
  Note note = {};           // an error that the caller has found
  UpdateCheck* check = nullptr;
};

// Collective, except with NanPolicy::local where no check is due: whether the inputs of all ranks fit. False: the step
// is to be skipped. UsageError otherwise, the same on every rank, and Divergence where a check fails. The seconds are
// added to `times`.
bool fits_on_all_ranks(Communicator& comm, const StepInput& input, PhaseTimer& timer, StepTimes& times);

}  // namespace oktopk
