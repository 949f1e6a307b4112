// SPDX-License-Identifier: Apache-2.0
#include "tools/study/fill_in.h"

#include <cmath>
#include <memory>
#include <set>

#include "oktopk/reduce/reducer.h"
#include "tests/laws/witness.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

// 1, 2, 4, ... below P, and P.
std::vector<int> group_sizes(int P) {
  std::vector<int> sizes;
  for (int m = 1; m < P; m *= 2) sizes.push_back(m);
  sizes.push_back(P);
  return sizes;
}

std::vector<std::vector<Index>> indices_of(const std::vector<Entries>& ranks) {
  std::vector<std::vector<Index>> all;
  for (const Entries& entries : ranks) {
    std::vector<Index> mine;
    for (const auto& [index, value] : entries) mine.push_back(index);
    all.push_back(std::move(mine));
  }
  return all;
}

}  // namespace

double independent_union(double n, double k, int m) { return n / k * (1 - std::pow(1 - k / n, m)); }

std::vector<UnionSize> union_sizes(const std::vector<std::vector<Index>>& selections, std::size_t k) {
  const auto P = selections.size();
  std::vector<UnionSize> sizes;
  for (const int m : group_sizes(static_cast<int>(P))) {
    const auto members = static_cast<std::size_t>(m);
    double total = 0;
    for (std::size_t i = 0; i < P; ++i) {
      std::set<Index> together;
      for (std::size_t j = 0; j < members; ++j) {
        const auto& mine = selections[(i + j * P / members) % P];
        together.insert(mine.begin(), mine.end());
      }
      total += static_cast<double>(together.size());
    }
    const double per_k = total / static_cast<double>(P * k);
    sizes.push_back({m, per_k, m > 1 && per_k > 0 ? std::log(per_k) / std::log(m) : 0});
  }
  return sizes;
}

FillInRun measure_fill_in(Communicator& comm, const FillInOptions& options) {
  std::vector<std::unique_ptr<Reducer>> reducers;
  std::vector<std::vector<double>> sizes;
  for (const Preset& preset : presets()) {
    if (preset.name == "dense") continue;
    reducers.push_back(std::make_unique<Reducer>(
        comm, options.source.n, ReducerOptions{.preset = std::string(preset.name), .density = options.density}));
  }
  sizes.resize(reducers.size());
  const Source source = make_source(options.source, comm.rank());
  std::vector<float> gradient;
  FillInRun run{.k = reducers.front()->k()};
  std::vector<std::vector<UnionSize>> unions;
  for (int step = 0; step < options.source.steps; ++step) {
    source(step, gradient);
    for (std::size_t r = 0; r < reducers.size(); ++r) {
      reducers[r]->forget();
      reducers[r]->step(gradient);
      sizes[r].push_back(static_cast<double>(reducers[r]->outcome().update.size()));
    }
    // The first is topka, whose selector is exact.
    unions.push_back(union_sizes(indices_of(gather_entries(comm, reducers.front()->sent())), run.k));
  }
  for (std::size_t r = 0; r < reducers.size(); ++r)
    run.updates.emplace_back(reducers[r]->allreduce().name(), mean_of(sizes[r]) / static_cast<double>(run.k));
  run.unions = unions.front();
  for (std::size_t j = 0; j < run.unions.size(); ++j) {
    UnionSize& mean = run.unions[j];
    mean.per_k = 0;
    for (const auto& step : unions) mean.per_k += step[j].per_k / static_cast<double>(unions.size());
    if (mean.m > 1) mean.exponent = std::log(mean.per_k) / std::log(mean.m);
  }
  return run;
}

}  // namespace oktopk
