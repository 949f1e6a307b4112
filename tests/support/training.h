// SPDX-License-Identifier: Apache-2.0
// For tests of whole runs of a Reducer: every preset with every rule that keeps all mass, gradients
// by step, and what is applied and what is still owed, summed over the ranks.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "oktopk/laws/witness.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/runs.h"

namespace oktopk {

struct TestedMethod {
  std::string preset;
  ResidualKind rule;
  ValueCoding value = ValueCoding::fp32;

  std::string name() const {
    const std::string coding = value == ValueCoding::fp32 ? "" : "_bf16";
    return preset + "_" + std::string(to_string(rule)) + coding;
  }
  ReducerOptions options(std::size_t k) const {
    ReducerOptions options = preset_options(preset, k);
    options.allreduce.residual = rule;
    options.allreduce.codec = Codec{.value = value};
    options.allreduce.tau = 4;
    options.allreduce.tau_prime = 3;
    return only_used(options);
  }
};

inline void PrintTo(const TestedMethod& m, std::ostream* out) { *out << m.name(); }

// All but gtopk with sender keeps, which is known to lose mass (docs/laws.md); and dense in bf16,
// which unlike dense has a residual.
inline std::vector<TestedMethod> all_methods() {
  std::vector<TestedMethod> all;
  for (const Preset& preset : presets())
    for (const ResidualKind rule : preset.residuals)
      if (preset.name != "gtopk" || rule != ResidualKind::sender_keeps) all.push_back({std::string(preset.name), rule});
  all.push_back({"dense", ResidualKind::none, ValueCoding::bf16});
  return all;
}

inline std::vector<float> gradient_of(const Reducer& reducer, std::uint64_t step, Input input = Input::dyadic) {
  return make_input(input, reducer.n(), reducer.comm().rank(), step, 1);
}

// Changes when a bit of the update does.
inline std::uint64_t bits_of(const Update& update) { return fold(0, update); }

// Owner memory, cuts, thresholds and counters, without the residual.
inline Bytes rest_of(const Reducer& reducer) {
  const ReducerState& state = state_of(reducer);
  StateWriter words;
  words.put(state.density.steps());
  state.selector->save(words);
  state.allreduce->save(words);
  words.put(state.unsent.memory().region.begin);
  state.unsent.write_memory(words);
  return words.seal();
}

inline Dense plus(Dense a, const Dense& b, double factor = 1) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

// The update's means times `factor`, laid out over [0, n).
inline Dense spread(const Update& update, std::size_t n, double factor = 1) {
  Dense out(n, 0.0);
  update.for_each([&](Index i, float mean) { out[i] = factor * double{mean}; });
  return out;
}

// The sum that the last step applied, from its outcome.
inline Dense sum_applied(const Reducer& reducer) {
  const Outcome& outcome = state_of(reducer).outcome;
  if (!outcome.dense_update.empty()) return {outcome.dense_update.begin(), outcome.dense_update.end()};
  return spread({outcome.update}, reducer.n());
}

inline Dense sum_over_ranks(Communicator& comm, std::span<const float> x) {
  return add_up(gather_dense(comm, Dense(x.begin(), x.end())));
}

// Residuals and owner memory of all ranks. Collective over comm.
inline Dense sum_unsent(const Reducer& reducer, Communicator& comm) {
  Dense mine(state_of(reducer).unsent.values().begin(), state_of(reducer).unsent.values().end());
  const OwnerMemory memory = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) mine[memory.index(i)] += double{memory.values[i]};
  return add_up(gather_dense(comm, mine));
}
inline Dense sum_unsent(const Reducer& reducer) { return sum_unsent(reducer, reducer.comm()); }

}  // namespace oktopk
