// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/notes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/flight.h"

namespace oktopk {
namespace {

constexpr std::size_t kTextBytes = 476;

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
  return (static_cast<std::uint32_t>(call.kind) << 28U) | (static_cast<std::uint32_t>(call.steps) & 0x0FFFFFFFU);
}

std::string call_in_words(const Slip& slip) {
  constexpr std::array<std::string_view, 4> kCalls = {"another function", "step()", "flush()", "load()"};
  const std::string call(kCalls[std::min<std::size_t>(slip.kind, kCalls.size() - 1)]);
  return slip.kind == static_cast<std::uint32_t>(Call::Kind::load)
             ? call
             : call + " after " + std::to_string(slip.steps) + " steps";
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
  // The largest call, and the complement of the smallest.
  std::array<std::uint32_t, 2> most = {severity | code_of(call), severity | (~code_of(call) & kCallMask)};
  allreduce_small(comm, std::span<std::uint32_t>(most), Reduction::max, work);
  const std::uint32_t gravest = most[0] >> kCallBits;
  const bool is_same = (most[0] & kCallMask) == (~most[1] & kCallMask);
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

Cost notes_cost(int P) {
  const double rounds = ceil_log2(P);
  return sequential(rounds, rounds * (2 * sizeof(std::uint32_t) + kCheckBytes));
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
  if (compares) note = compare_notes(comm, note, in.work, {Call::Kind::step, in.steps});
  times.exchange += timer.lap("notes");
  if (note.severity == Severity::fine) return true;
  require(in.policy == NanPolicy::skip && note.severity == Severity::skippable, "reducer: ", note.text);
  return false;
}

}  // namespace oktopk
