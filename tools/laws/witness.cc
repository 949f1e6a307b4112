// SPDX-License-Identifier: Apache-2.0
#include "tools/laws/witness.h"

#include <algorithm>

#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

Dense scatter(CooView v, std::size_t n) {
  Dense out(n, 0.0);
  for (std::size_t i = 0; i < v.size(); ++i) out[v.idx[i]] = v.val[i];
  return out;
}

Dense scatter(const OwnerMemory& memory, std::size_t n) {
  Dense out(n, 0.0);
  std::copy(memory.values.begin(), memory.values.end(), out.begin() + memory.region.begin);
  return out;
}

}  // namespace

std::vector<Dense> gather_dense(Communicator& comm, const Dense& mine) {
  const auto P = static_cast<std::size_t>(comm.size());
  Dense all(P * mine.size());
  Workspace work;
  allgather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work);
  std::vector<Dense> by_rank;
  for (std::size_t r = 0; r < P; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    by_rank.emplace_back(first, first + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return by_rank;
}

Witness witness_step(Communicator& report, CountingCommunicator& counting, Reducer& reducer,
                     std::span<const float> gradient) {
  const std::size_t n = reducer.n();
  Witness w;
  Dense accumulator(reducer.residual().begin(), reducer.residual().end());
  for (std::size_t i = 0; i < gradient.size(); ++i) accumulator[i] += gradient[i];
  const Dense memory_before = scatter(reducer.memory(), n);
  counting.reset();

  const Outcome& outcome = reducer.step(gradient);

  const Traffic traffic = counting.traffic();
  const bool dense = reducer.allreduce().is_dense();
  const Dense update = dense ? Dense(outcome.dense_update.begin(), outcome.dense_update.end())
                             : scatter(outcome.update, n);
  w.accumulators = gather_dense(report, accumulator);
  w.selections = gather_dense(report, dense ? accumulator : scatter(reducer.selection(), n));
  w.updates = gather_dense(report, update);
  w.residuals = gather_dense(report, Dense(reducer.residual().begin(), reducer.residual().end()));
  w.memory_before = oracle_sum(gather_dense(report, memory_before));
  w.memory_after = oracle_sum(gather_dense(report, scatter(reducer.memory(), n)));
  w.refreshed = outcome.refreshed;
  Workspace work;
  w.traffic.resize(static_cast<std::size_t>(report.size()));
  allgather(report, std::as_bytes(std::span(&traffic, 1)),
            std::as_writable_bytes(std::span(w.traffic)), work);
  return w;
}

}  // namespace oktopk
