// SPDX-License-Identifier: Apache-2.0
// What `oktopk simulate` tells the simulated program, and what that answers: both as JSON, because
// the two are different programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/candidates.h"

namespace oktopk {

// Seconds that a processor takes for what arrives, as in Machine: round numbers of one core.
struct KernelCosts {
  double gamma = 3e-9;     // per sparse entry: checked, decoded, merged
  double delta = 0.25e-9;  // per dense value: added or stored
};

// Who is slow, and how many times.
struct SlowHost {
  int rank = -1;  // none
  double factor = 1;
};

// One size, and what no rank alone knows of it: the sum of all first selections.
struct SimulatedProblem {
  Index n = 0;
  std::size_t k = 0;
  double kth_magnitude = 0;  // of the sum
  std::size_t union_size = 0;
  Cuts cuts;                              // voted, as oktopk's refresh makes them
  std::vector<std::size_t> cut_unions;    // entries of the sum in each of those regions
  std::vector<std::size_t> equal_unions;  // and in regions of equal width
  std::vector<Method> methods;            // what each preset of the spec does with it
  std::vector<SimulatedProblem> leaders;  // with methods in groups: that of the nodes' leaders
};

struct SimulationSpec {
  int P = 1;
  std::vector<SimulatedProblem> problems;
  std::vector<std::string> presets;
  std::string support;
  std::uint64_t seed = 1;
  int steps = 2;
  int warm_up = 2;  // steps before those in which the thresholds of oktopk and circulant settle
  int tau = 64;
  ThresholdRule thresholds = ThresholdRule::steered;  // oktopk's
  int tau_prime = 32;
  KernelCosts kernels;
  double receive_overhead = 0;  // seconds per message
  SlowHost slow_host;
  double data_bytes = 0;  // a preset that needs more on all ranks together sends sizes, if it can
  std::string provoke;    // for tests: deadlock, abort

  AllreduceOptions allreduce(const Method& method) const;
  // Whether oktopk gathers the whole union every tau' steps.
  bool gathers_unions() const { return thresholds != ThresholdRule::steered; }
  // As the model takes them. Passes over n are not simulated, so they cost the same for all.
  Machine kernel_prices() const { return {.gamma = kernels.gamma, .delta = kernels.delta, .sigma = kernels.delta}; }
};

nlohmann::json to_json(const SimulationSpec& spec);
SimulationSpec spec_from_json(const nlohmann::json& json);

// Times in seconds of simulated time; counts per step on the busiest rank, duplex (see Traffic).
struct SimulatedRow {
  std::string preset;
  double n = 0;
  double k = 0;
  int P = 1;
  bool carries_data = true;  // or messages of the same sizes
  bool refresh_carries_data = true;
  double steady = 0;
  double refresh = 0;  // the first step, which sets thresholds and cuts
  double mean = 0;     // with refreshes as they came; by the paper's rule oktopk's every tau' steps
  double messages = 0;
  double bytes = 0;
  double selected = 0;  // entries of the update
};

nlohmann::json to_json(const SimulatedRow& row);
SimulatedRow row_from_json(const nlohmann::json& json);

}  // namespace oktopk
