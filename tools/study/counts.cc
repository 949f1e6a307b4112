// SPDX-License-Identifier: Apache-2.0
#include "tools/study/counts.h"

#include <memory>

#include "oktopk/reduce/reducer.h"
#include "tests/laws/witness.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

struct CountRunner {
  std::string name;
  bool global;
  std::unique_ptr<Reducer> reducer;
  std::vector<double> counts = {};
};

std::vector<CountRunner> make_runners(Communicator& comm, const CountOptions& o) {
  std::vector<CountRunner> runners;
  const auto add = [&](std::string name, bool global, const ReducerOptions& options) {
    runners.push_back({std::move(name), global, std::make_unique<Reducer>(comm, o.source.n, options)});
  };
  for (const SelectorInfo& selector : selectors())
    add(std::string(selector.name), false, {.preset = "topka", .density = o.density, .selector = selector.kind});
  for (const char* preset : {"oktopk", "circulant"}) add(preset, true, {.preset = preset, .density = o.density});
  return runners;
}

}  // namespace

std::vector<CountRun> measure_counts(Communicator& comm, const CountOptions& options) {
  std::vector<CountRunner> runners = make_runners(comm, options);
  const Source source = make_source(options.source, comm.rank());
  std::vector<float> gradient;
  for (int step = 0; step < options.source.steps; ++step) {
    source(step, gradient);
    for (CountRunner& runner : runners) {
      runner.reducer->step(gradient);
      const std::size_t count = runner.global ? runner.reducer->outcome().update.size() : runner.reducer->sent().size();
      runner.counts.push_back(static_cast<double>(count) / static_cast<double>(runner.reducer->k()));
    }
  }
  std::vector<CountRun> runs;
  for (const CountRunner& runner : runners) {
    const auto by_rank = gather_dense(comm, runner.counts);
    CountRun run{.name = runner.name, .global = runner.global};
    run.per_step = mean_over_ranks(by_rank);
    // The update is the same on all ranks.
    for (const Dense& rank : std::span(by_rank).first(runner.global ? 1 : by_rank.size()))
      run.ratios.insert(run.ratios.end(), rank.begin() + std::ssize(rank) / 4, rank.end());
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace oktopk
