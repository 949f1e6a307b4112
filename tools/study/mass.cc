// SPDX-License-Identifier: Apache-2.0
#include "tools/study/mass.h"

#include <memory>
#include <utility>

#include "tests/laws/witness.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

// What this rank holds that is not applied yet.
Dense unsent(const Reducer& reducer) {
  Dense held(reducer.residual().begin(), reducer.residual().end());
  const OwnerMemory memory = reducer.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i) held[memory.region.begin + i] += memory.values[i];
  return held;
}

void add(Dense& a, const Dense& b, double factor = 1) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
}

// The sum over all ranks, on every rank.
Dense sum_over_ranks(Communicator& comm, Dense mine, Workspace& work) {
  allreduce_small(comm, std::span(mine), Reduction::sum, work);
  return mine;
}

Dense update_of(const Reducer& reducer) {
  const Outcome& outcome = reducer.outcome();
  if (reducer.allreduce().is_dense()) return {outcome.dense_update.begin(), outcome.dense_update.end()};
  Dense update(reducer.n(), 0.0);
  for (std::size_t j = 0; j < outcome.update.size(); ++j) update[outcome.update.idx[j]] = outcome.update.val[j];
  return update;
}

class MassRunner {
 public:
  MassRunner(Communicator& comm, Index n, const ReducerOptions& options)
      : comm_(comm), reducer_(comm, n, options), lost_(n, 0.0) {}

  void step(std::span<const float> gradient, double brought) {
    Dense balance = unsent(reducer_);
    reducer_.step(gradient);
    for (std::size_t i = 0; i < gradient.size(); ++i) balance[i] += gradient[i];
    add(balance, unsent(reducer_), -1);
    Dense gone = sum_over_ranks(comm_, std::move(balance), work_);
    const Dense update = update_of(reducer_);
    add(gone, update, -1);
    add(lost_, gone);
    run_.brought = brought;
    run_.lost = norm1(lost_);
    const double applied = norm1(update);
    run_.per_step.push_back(applied > 0 ? norm1(gone) / applied : 0);
    run_.total.push_back(run_.share());
  }

  MassRun& run() { return run_; }

 private:
  Communicator& comm_;
  Reducer reducer_;
  Dense lost_;
  Workspace work_;
  MassRun run_;
};

}  // namespace

std::vector<MassRun> measure_mass(Communicator& comm, const MassOptions& options) {
  const Index n = options.source.n;
  std::vector<std::unique_ptr<MassRunner>> runners;
  for (const ReducerOptions& reducer : options.cases) runners.push_back(std::make_unique<MassRunner>(comm, n, reducer));
  const Source source = make_source(options.source, comm.rank());
  Dense brought(n, 0.0);
  std::vector<float> gradient;
  Workspace work;
  for (int step = 0; step < options.source.steps; ++step) {
    source(step, gradient);
    add(brought, sum_over_ranks(comm, {gradient.begin(), gradient.end()}, work));
    for (const auto& runner : runners) runner->step(gradient, norm1(brought));
  }
  std::vector<MassRun> runs;
  for (const auto& runner : runners) runs.push_back(std::move(runner->run()));
  return runs;
}

}  // namespace oktopk
