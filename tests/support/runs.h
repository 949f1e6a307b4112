// SPDX-License-Identifier: Apache-2.0
// Runs of an allreduce on threads for the tests of single algorithms: either from gradients (a
// Reducer per rank) or from selections given by hand (problems too large for n-sized memory). A run
// keeps what every rank got and sent, step by step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/laws/truth.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/sparse.h"
#include "tests/support/world.h"

namespace oktopk {

struct RankStep {
  Outcome outcome;
  SparseVector selection;
  Traffic traffic;
  std::vector<float> residual;  // of runs from gradients
  Range region;                 // of the owner memory, likewise
};
using History = std::vector<std::vector<RankStep>>;  // [rank][step]

inline ReducerOptions preset_options(const std::string& preset, std::size_t k) {
  ReducerOptions options;
  options.preset = preset;
  options.k = k;
  return only_used(options);
}

inline AllreduceOptions with_codec(const std::string& codec) {
  AllreduceOptions options;
  options.codec = parse_codec(codec);
  return options;
}

inline History run_gradients(int P, const ReducerOptions& options, Index n, int steps,
                             const std::function<std::vector<float>(int rank, int step)>& gradient) {
  return gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    ReducerOptions quiet = options;
    quiet.nan_policy = NanPolicy::local;  // the algorithm's own messages only
    Reducer reducer(counting, n, only_used(quiet));
    std::vector<RankStep> ran;
    for (int step = 0; step < steps; ++step) {
      counting.reset();
      reducer.step(gradient(comm.rank(), step));
      const Outcome& outcome = state_of(reducer).outcome;
      SparseVector sent;
      sent.append(reducer.sent());
      ran.push_back({outcome,
                     sent,
                     counting.traffic(),
                     {state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end()},
                     state_of(reducer).unsent.memory().region});
    }
    return ran;
  });
}

inline History run_input(int P, const ReducerOptions& options, Index n, int steps, Input input) {
  return run_gradients(P, options, n, steps, [&](int rank, int step) {
    return make_input(input, n, rank, static_cast<std::uint64_t>(step), 1);
  });
}

inline History run_selections(int P, const std::string& preset, const AllreduceOptions& options, Index n, std::size_t k,
                              int steps, const std::function<SparseVector(int rank, int step)>& selection) {
  return gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    const auto device = make_cpu_device();
    const auto allreduce = make_allreduce(find_preset(preset), options);
    std::vector<RankStep> ran;
    for (int step = 0; step < steps; ++step) {
      counting.reset();
      RankStep mine;
      mine.selection = selection(comm.rank(), step);
      allreduce->run(counting, *device, {mine.selection}, n, k, mine.outcome);
      mine.traffic = counting.traffic();
      ran.push_back(std::move(mine));
    }
    return ran;
  });
}

inline Entries entries_of(CooView v) {
  Entries out;
  for (const auto& [i, x] : list_of(v)) out[i] = x;
  return out;
}

inline std::vector<Entries> selections_of(const History& run, std::size_t step) {
  std::vector<Entries> all;
  for (const auto& rank : run) all.push_back(entries_of(rank[step].selection));
  return all;
}

// `count` entries, half at the start and half at the end of [0, n), that overlap between ranks.
inline SparseVector both_ends(Index n, int rank, int step, std::size_t count) {
  Random random(31, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
  SparseVector out = random_sparse(random, count / 2, 0, 100);
  out.append(random_sparse(random, count - count / 2, n - 100, n));
  return out;
}

}  // namespace oktopk
