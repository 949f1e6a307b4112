// SPDX-License-Identifier: Apache-2.0
// One row of `oktopk-lab simulate`, as two programs exchange it in JSON: `oktopk` writes a SimulationSpec, the
// simulated program (main.cc) answers with a SimulatedRow, which simulate_row() (experiment.cc) makes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/tune/candidates.h"

namespace oktopk {

struct SimulationSpec {
  int P = 1;
  Index n = 0;
  std::size_t k = 0;
  // The ranks solve a problem that is so many times smaller, on links and processors that are so many times slower per
  // byte: the time is that of the whole problem, the memory is not.
  int scale = 1;
  Method method;
  double union_exponent = 1;  // of the ranks that run the allreduce; see Problem
  std::string support = "iid";
  std::uint64_t seed = 1;
  int steps = 2;
  int warm_up = 2;  // steps before those, in which the thresholds of oktopk and circulant settle
  int tau = 64;
  ThresholdRule thresholds = ThresholdRule::steered;  // oktopk's
  int tau_prime = 32;
  double gamma = 3e-9;          // seconds of a processor per sparse entry that is merged: a round number
  double delta = 0.25e-9;       // per dense value that is added or stored
  double receive_overhead = 0;  // seconds per message
  int slow_rank = -1;           // none
  double slow_factor = 1;
  std::string provoke;  // for tests: deadlock, abort or error

  // Ranks that run the allreduce: all, or the leaders of groups.
  int allreduce_ranks() const { return (P + method.group - 1) / method.group; }
  Index scaled_n() const { return std::max<Index>(1, n / static_cast<Index>(scale)); }
  std::size_t scaled_k() const {
    const auto divisor = static_cast<std::size_t>(scale);
    return std::max<std::size_t>(1, (k + divisor / 2) / divisor);
  }
  // Whether oktopk gathers the whole union every tau' steps.
  bool gathers_unions() const { return method.preset == "oktopk" && thresholds != ThresholdRule::steered; }
  // As the cost model takes them. Passes over n are not simulated, so they cost the same for all.
  Machine kernel_prices() const { return {.gamma = gamma, .delta = delta, .sigma = delta}; }
  AllreduceOptions allreduce() const {
    AllreduceOptions options{.tau = tau, .thresholds = thresholds, .tau_prime = tau_prime};
    const bool ring = dense_uses_ring(options, n, allreduce_ranks());  // by the whole n
    options.dense = ring ? DenseSchedule::ring : DenseSchedule::rabenseifner;
    return method.options(options);
  }
};

// Times in seconds of simulated time; counts per step on the busiest rank, duplex (see Traffic), of the whole problem.
struct SimulatedRow {
  double steady = 0;
  double refresh = 0;  // the first step, which sets thresholds and cuts
  double mean = 0;     // with refreshes as they came; where oktopk gathers unions, with one in tau' steps
  double messages = 0;
  double wire_bytes = 0;
  double selected = 0;  // entries of the update
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Codec, index, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Method, preset, codec, skips, group)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SimulationSpec, P, n, k, scale, method, union_exponent, support, seed, steps,
                                   warm_up, tau, thresholds, tau_prime, gamma, delta, receive_overhead, slow_rank,
                                   slow_factor, provoke)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SimulatedRow, steady, refresh, mean, messages, wire_bytes, selected)

// The clock that all ranks share.
struct SimulatedClock {
  std::function<double()> now;  // seconds
  std::function<void(double instant)> sleep_until;
  std::function<void(double seconds)> compute;  // on this rank's processor
};

// Collective; the row is complete on rank 0. UsageError unless there is a step, and, where oktopk gathers unions,
// warm-up and steps end before the next one. REQUIRES: all ranks share one memory.
SimulatedRow simulate_row(Communicator& comm, const SimulationSpec& spec, const SimulatedClock& clock);

}  // namespace oktopk
