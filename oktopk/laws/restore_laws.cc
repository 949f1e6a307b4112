// SPDX-License-Identifier: Apache-2.0
// Law 3 over a restart: a run that is saved in its middle continues as if never stopped; on another number of ranks it
// still owes the weights the same values.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "oktopk/comm/collectives.h"
#include "oktopk/laws/laws.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/witness.h"

namespace oktopk {
namespace {

std::vector<Bytes> gather_states(Communicator& comm, const Bytes& mine) {
  Workspace work;
  const auto most = allreduce_small<std::uint64_t>(comm, mine.size(), Reduction::max, work);
  const std::vector<std::size_t> capacities(static_cast<std::size_t>(comm.size()), most);
  Gathered all;
  allgatherv(comm, mine, capacities, all);
  std::vector<Bytes> states;
  for (int r = 0; r < comm.size(); ++r) states.emplace_back(all.of(r).begin(), all.of(r).end());
  return states;
}

// The values owed to the weights, (sum of residuals + owner memory) / P, and the same of magnitudes.
struct Owed {
  Dense mean;
  Dense size;
};

Owed owed_by(Synchroniser& sync) {
  const Subject subject(sync);
  const auto residual = subject.residual();
  Dense mine(residual.begin(), residual.end());
  Dense size(mine.size());
  std::transform(mine.begin(), mine.end(), size.begin(), [](double x) { return std::fabs(x); });
  const Subject::Memory memory = subject.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i) {
    if (memory.values[i] == 0) continue;
    mine[memory.index(i)] += double{memory.values[i]};
    size[memory.index(i)] += std::fabs(double{memory.values[i]});
  }
  Owed owed{add_up(gather_dense(sync.comm(), mine)), add_up(gather_dense(sync.comm(), size))};
  for (double& x : owed.mean) x /= sync.comm().size();
  return owed;
}

// Names the first index at which `is` differs from what was owed by more than rounding (P'/P is seldom a power of two);
// empty if there is none.
std::string differs(const Dense& is, const Owed& owed, const char* what) {
  for (std::size_t i = 0; i < is.size(); ++i)
    if (std::fabs(is[i] - owed.mean[i]) > 1e-6 * owed.size[i]) {
      std::ostringstream text;
      text << what << "[" << i << "] was " << owed.mean[i] << ", is " << is[i];
      return text.str();
    }
  return "";
}

// Restores the states of all ranks on the ranks of `fewer` and flushes them; says what is wrong then.
std::string restore_on(Communicator& fewer, const Trial& trial, const std::vector<Bytes>& states, const Owed& owed) {
  ReducerOptions options = trial.options;
  options.allreduce.skips = "halving";  // a list fits one P only
  const auto sync = make_synchroniser(fewer, trial.n, options, trial.group);
  sync->load_all(states);
  std::string wrong = differs(owed_by(*sync).mean, owed, "one rank less: owed");
  const Update rest = sync->flush();
  if (wrong.empty()) wrong = differs(Dense(rest.dense.begin(), rest.dense.end()), owed, "one rank less: applied");
  return wrong;
}

}  // namespace

Finding check_restore(Communicator& comm, const Trial& trial) {
  const int middle = trial.steps / 2;
  const auto whole = make_synchroniser(comm, trial.n, trial.options, trial.group);
  run_steps(*whole, trial, 0, middle);
  const Bytes state = whole->save();
  const Owed owed = owed_by(*whole);
  const auto resumed = make_synchroniser(comm, trial.n, trial.options, trial.group);
  resumed->load(state);
  std::string wrong;
  if (run_steps(*resumed, trial, middle, trial.steps) != run_steps(*whole, trial, middle, trial.steps) ||
      resumed->save() != whole->save())
    wrong = "the resumed run is another one";
  if (comm.size() > 1) {
    const auto states = gather_states(comm, state);
    const bool stays = comm.rank() + 1 < comm.size();
    const auto part = comm.split(stays ? 0 : 1, comm.rank());
    std::string of_fewer;
    if (stays) of_fewer = restore_on(*part, trial, states, owed);
    if (wrong.empty()) wrong = of_fewer;
  }
  const int r = first_that_denies(comm, wrong.empty());
  if (r < 0) return {"restore", true, ""};
  return {"restore", false, "rank " + std::to_string(r) + (wrong.empty() ? " differs" : ": " + wrong)};
}

}  // namespace oktopk
