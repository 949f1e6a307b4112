// SPDX-License-Identifier: Apache-2.0
// A run, drawn from its seed: the problem (preset, codec, sizes), the weather (delays of messages) and the faults. Each
// kind of fault has a probability of its own, which is drawn, too: some runs have none, some have many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oktopk/base/random.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk::faults {

enum class FaultKind {
  crash,   // the process dies; its connections are reset
  vanish,  // the process dies, and nobody is told: a power cut
  pause,   // SIGSTOP, and SIGCONT later
  cut,     // one connection breaks; both ends learn it, at different times
  flip,    // one bit of a message
};
std::string to_string(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::crash;
  int rank = 0;
  int peer = 0;                     // cut: the other end
  std::uint64_t at = 0;             // strikes at this operation of the rank
  Communicator::Duration delay{};   // that long after it has begun; zero: inside it, after some of its sends
  Communicator::Duration length{};  // pause
};

// A fault of the arbiter of an elastic job, or of the connections of members with it.
enum class ArbiterFaultKind {
  stop,                // SIGSTOP, and SIGCONT later
  restart,             // the process dies, and a new one that knows nothing takes its place
  restart_with_state,  // the same, and the new one has the state of the old one
  cut,                 // members cannot reach it for a while
  reset,               // connections of members break
};

struct ArbiterFault {
  ArbiterFaultKind kind = ArbiterFaultKind::stop;
  bool is_at_decision = false;  // strikes after this decision; else before this word of a member
  std::uint64_t at = 0;
  Communicator::Duration delay{};
  Communicator::Duration length{};
  std::uint64_t actors = 0;  // cut, reset: one bit for each
  bool is_silent = false;    // cut: the ends are not told
};

struct Weather {
  Communicator::Duration latency = std::chrono::microseconds(20);  // at most, of most messages
  double slow = 0;                                                 // probability of a slow message
  Communicator::Duration slowest = std::chrono::milliseconds(500);
  double stall = 0;  // probability that a rank computes for a while before an operation
  bool repeats_old_frames = true;
  // A bug of the transport, planted by tests: frames of an old epoch are taken.
  bool takes_old_frames = false;
};

enum class Shape { plain, buckets, nodes };

struct Plan {
  std::uint64_t seed = 0;
  int P = 1;
  Index n = 0;
  std::uint64_t steps = 0;
  std::uint64_t save_interval = 1;
  Shape shape = Shape::plain;
  Input input = Input::dyadic;
  ReducerOptions options;
  Weather weather;
  double fault_rate = 0;  // of each rank and attempt, per kind

  bool is_exact() const;       // sums have no rounding errors
  bool has_checksums() const;  // on every message of a step
};

struct Limits {
  std::uint64_t steps = 8;
  int least_ranks = 1;
  int most_ranks = 8;
};

Plan draw_plan(std::uint64_t seed, const Limits& limits = {});
// The same for members that come and go, with one Reducer.
Plan draw_elastic_plan(std::uint64_t seed, Limits limits = {});
// The step after which a member leaves: the last one of the job, or an earlier one.
std::uint64_t last_step_of(const Plan& plan, std::uint64_t member);
// The faults of one attempt to run the plan; the last attempts have none.
std::vector<Fault> draw_faults(const Plan& plan, int attempt);
std::string describe(const Plan& plan);
std::string describe(const Fault& fault);
std::vector<ArbiterFault> draw_arbiter_faults(const Plan& plan);
std::string describe(const ArbiterFault& fault);

}  // namespace oktopk::faults
