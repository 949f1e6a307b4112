// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/notes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/flight.h"
#include "oktopk/reduce/update_check.h"

namespace oktopk {
namespace {

constexpr std::size_t kTextBytes = 476;
constexpr std::size_t kNoteWords = 2, kHashWords = 4;  // of a note that all is fine

// A note as it travels.
struct Slip {
  std::uint32_t severity = 0;
  std::uint32_t kind = 0;
  std::uint32_t steps = 0;
  std::array<char, kTextBytes> text{};  // zeros after its end
};

// Kind and steps in 30 bits; the severity goes above them.
constexpr std::uint32_t kCallBits = 30;
constexpr std::uint32_t kCallMask = (1U << kCallBits) - 1;
std::uint32_t code_of(const Call& call) {
  return (static_cast<std::uint32_t>(call.kind) << 27U) | (static_cast<std::uint32_t>(call.steps) & 0x07FFFFFFU);
}

std::string call_in_words(const Slip& slip) {
  constexpr std::array<std::string_view, 5> kCalls = {"another function", "step()", "flush()", "load()", "load_all()"};
  const std::string call(kCalls[std::min<std::size_t>(slip.kind, kCalls.size() - 1)]);
  const bool loads = slip.kind >= static_cast<std::uint32_t>(Call::Kind::load);
  return loads ? call : call + " after " + std::to_string(slip.steps) + " steps";
}

// Names the first rank that makes another call than rank 0.
void require_same_calls(std::span<const Slip> all) {
  const auto other = std::find_if(
      all.begin(), all.end(), [&](const Slip& slip) { return slip.kind != all[0].kind || slip.steps != all[0].steps; });
  if (other == all.end()) return;
  fail<UsageError>("reducer: rank ", other - all.begin(), " calls ", call_in_words(*other), ", but rank 0 calls ",
                   call_in_words(all[0]), ": all ranks must make the same calls");
}

Slip write(const Note& note, const Call& call) {
  constexpr std::string_view kCut = "...";
  Slip slip{.severity = static_cast<std::uint32_t>(note.severity),
            .kind = static_cast<std::uint32_t>(call.kind),
            .steps = static_cast<std::uint32_t>(call.steps)};
  const bool fits = note.text.size() <= kTextBytes;
  std::copy_n(note.text.begin(), std::min(note.text.size(), kTextBytes), slip.text.begin());
  if (!fits) std::copy(kCut.begin(), kCut.end(), slip.text.end() - kCut.size());
  return slip;
}

}  // namespace

Note compare_notes(Communicator& comm, const Note& mine, Workspace& work, const Call& call) {
  const FlightLabel label(comm, "notes");
  const std::uint32_t severity = static_cast<std::uint32_t>(mine.severity) << kCallBits;
  const auto low = static_cast<std::uint32_t>(call.hash);
  const auto high = static_cast<std::uint32_t>(call.hash >> 32U);
  // The largest call, and the complement of the smallest; the same of the hash.
  std::array<std::uint32_t, kNoteWords + kHashWords> most = {
      severity | code_of(call), severity | (~code_of(call) & kCallMask), low, ~low, high, ~high};
  allreduce_small(comm, std::span<std::uint32_t>(most).first(call.has_hash ? most.size() : kNoteWords), Reduction::max,
                  work);
  const std::uint32_t gravest = most[0] >> kCallBits;
  const bool is_same = (most[0] & kCallMask) == (~most[1] & kCallMask);
  const bool is_equal = most[2] == ~most[3] && most[4] == ~most[5];
  if (is_same && !is_equal && gravest < static_cast<std::uint32_t>(Severity::error)) {
    compare_hashes(comm, "the update", call.hash, call.steps, work);
    fail_world(comm, "hashes of the update differed and then did not");
  }
  if (gravest == static_cast<std::uint32_t>(Severity::fine) && is_same) return {};
  const Slip slip = write(mine, call);
  std::vector<Slip> all(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&slip, 1)), std::as_writable_bytes(std::span(all)), work);
  require_same_calls(all);
  const auto first = std::find_if(all.begin(), all.end(), [&](const Slip& s) { return s.severity == gravest; });
  if (first == all.end()) fail_world(comm, "a rank reported trouble and then took it back");
  const auto end = std::find(first->text.begin(), first->text.end(), '\0');
  return {static_cast<Severity>(gravest),
          "rank " + std::to_string(first - all.begin()) + ": " + std::string(first->text.begin(), end)};
}

std::string_view way_out(bool is_comm_dead) {
  return is_comm_dead ? "its communicator is dead: build a new one and a new object on it, and "
                        "load() the last saved state there"
                      : "load() the last saved state, or forget() what is unsent, on all ranks";
}

Cost notes_cost(int P, bool has_hash, double share) {
  const double rounds = share * ceil_log2(P);
  const std::size_t words = kNoteWords + (has_hash ? kHashWords : 0);
  return sequential(rounds, rounds * static_cast<double>(words * sizeof(std::uint32_t) + kCheckBytes));
}

Prediction notes_cost(int P, const ReducerOptions& options) {
  const bool checks = options.check_every > 0;
  if (options.nan_policy != NanPolicy::local) return {notes_cost(P, checks), notes_cost(P, checks)};
  if (!checks) return {};
  return {notes_cost(P, true, 1.0 / static_cast<double>(options.check_every)), notes_cost(P, true)};
}

Note inspect_size(Gradient gradient, float scale, std::size_t n) {
  if (!gradient.empty() && gradient.size() != n)
    return {Severity::error,
            "the gradient has " + std::to_string(gradient.size()) + " entries, but n = " + std::to_string(n)};
  if (!std::isfinite(scale)) return {Severity::error, "scale = " + digits(scale) + ", but it must be finite"};
  return {};
}

Note inspect_values(const Device& device, Gradient gradient, float scale, std::size_t n) {
  Note note = inspect_size(gradient, scale, n);
  if (note.severity != Severity::fine) return note;
  const std::size_t bad = device.first_nonfinite(gradient);
  if (bad == gradient.size()) return {};
  return {Severity::skippable, describe_nonfinite(device, gradient, bad)};
}

// NanPolicy::local finds values that are not finite where they were added. One rank alone saves no message by that, and
// looks first.
bool fits_on_all_ranks(Communicator& comm, const StepInput& in, PhaseTimer& timer, StepTimes& times) {
  const bool compares = in.policy != NanPolicy::local;
  Note note = in.note;
  if (note.severity == Severity::fine)
    note = compares || comm.size() == 1 ? inspect_values(in.device, in.gradient, in.scale, in.n)
                                        : inspect_size(in.gradient, in.scale, in.n);
  times.check += timer.lap("check");
  const bool is_due = in.check != nullptr && in.check->is_due();
  Call call{.kind = Call::Kind::step, .steps = in.steps, .has_hash = in.check != nullptr && in.check->is_on()};
  try {
    if (is_due) call.hash = in.check->take_hash();
  } catch (const std::exception& error) {
    note = {Severity::error, text_of("the bytes to check cannot be had: ", error.what())};
  }
  if (compares || is_due) note = compare_notes(comm, note, in.work, call);
  times.exchange += timer.lap("notes");
  if (note.severity == Severity::fine) return true;
  require(in.policy == NanPolicy::skip && note.severity == Severity::skippable, "reducer: ", note.text);
  return false;
}

}  // namespace oktopk
