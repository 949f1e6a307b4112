// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/witness.h"

#include <algorithm>

#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/laws/laws.h"

namespace oktopk {
namespace {

Entries entries_of(CooView v) {
  Entries out;
  for (std::size_t i = 0; i < v.size(); ++i)
    if (v.val[i] != 0) out.emplace_hint(out.end(), v.idx[i], v.val[i]);
  return out;
}

SparseVector nonzeros(std::span<const float> x, const MemoryLayout& layout = {}) {
  SparseVector out;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0) out.push_back(static_cast<Index>(layout.index(i)), x[i]);
  return out;
}

Dense scatter(const Subject::Memory& memory, std::size_t n) {
  Dense out(n, 0.0);
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) out.at(memory.index(i)) = memory.values[i];
  return out;
}

}  // namespace

Dense add_up(std::span<const Dense> terms) {
  if (terms.empty()) return {};
  Dense sum = terms[0];
  for (const Dense& term : terms.subspan(1))
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
  return sum;
}

std::vector<Bytes> gather_bytes(Communicator& comm, std::span<const std::byte> mine, int root) {
  Workspace work;
  const auto most = allreduce_small<std::uint64_t>(comm, mine.size(), Reduction::max, work);
  Gathered all;
  allgatherv(comm, mine, std::vector<std::size_t>(static_cast<std::size_t>(comm.size()), most), all);
  std::vector<Bytes> by_rank;
  if (root >= 0 && root != comm.rank()) return by_rank;
  for (int r = 0; r < comm.size(); ++r) by_rank.emplace_back(all.of(r).begin(), all.of(r).end());
  return by_rank;
}

std::vector<Entries> gather_entries(Communicator& comm, CooView mine, int root) {
  Bytes bytes;
  for (const auto part : {std::as_bytes(mine.idx), std::as_bytes(mine.val)})
    bytes.insert(bytes.end(), part.begin(), part.end());
  std::vector<Entries> by_rank;
  for (const Bytes& theirs : gather_bytes(comm, bytes, root)) {
    const std::span<const std::byte> from = theirs;
    SparseVector v;
    v.resize(from.size() / 8);
    std::ranges::copy(from.first(4 * v.size()), std::as_writable_bytes(std::span(v.idx)).begin());
    std::ranges::copy(from.last(4 * v.size()), std::as_writable_bytes(std::span(v.val)).begin());
    by_rank.push_back(entries_of(v));
  }
  return by_rank;
}

std::vector<Dense> gather_dense(Communicator& comm, const Dense& mine, int root) {
  const auto P = static_cast<std::size_t>(comm.size());
  Dense all(P * mine.size());
  Workspace work;
  allgather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work);
  std::vector<Dense> by_rank;
  if (root >= 0 && root != comm.rank()) return by_rank;
  for (std::size_t r = 0; r < P; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    by_rank.emplace_back(first, first + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return by_rank;
}

std::vector<double> ask_all(Communicator& comm, double mine) {
  std::vector<double> all;
  for (const Dense& d : gather_dense(comm, {mine})) all.push_back(d[0]);
  return all;
}

int first_that_denies(Communicator& comm, bool mine) {
  const auto all = ask_all(comm, mine ? 1 : 0);
  const auto no = std::ranges::find(all, 0.0);
  return no == all.end() ? -1 : static_cast<int>(no - all.begin());
}

std::uint64_t run_steps(Synchroniser& sync, const Trial& trial, int from, int to) {
  std::uint64_t hash = 0;
  for (int step = from; step < to; ++step)
    hash = fold(hash, sync.step(make_input(trial.input, trial.n, sync.comm().rank(), static_cast<std::uint64_t>(step),
                                           trial.seed)));
  return hash;
}

std::uint64_t fold(std::uint64_t hash, const Update& update) {
  hash = hash_bytes(std::as_bytes(update.sparse.idx), hash);
  hash = hash_bytes(std::as_bytes(update.sparse.val), hash);
  return hash_bytes(std::as_bytes(update.dense), hash);
}

StepRecord record_step(Communicator& report, Subject& subject, std::span<const float> gradient, int root,
                       Update* received) {
  const Subject::Memory memory = subject.memory();
  const SparseVector remembered = nonzeros(memory.values, memory);
  const Update update = subject.sync().step(gradient);
  if (received != nullptr) *received = update;
  const Outcome& outcome = subject.outcome();
  // Rank 0 leads its node: it knows for those that do not.
  StepRecord record;
  record.refreshed = ask_all(report, outcome.refreshed ? 1 : 0)[0] != 0;
  const bool is_first = report.rank() == 0;
  const auto sums = gather_entries(report, is_first ? outcome.update : CooView{}, root);
  if (!sums.empty()) record.update = sums[0];
  if (update.is_dense()) return record;
  const auto selections = gather_entries(report, subject.selection(), root);
  if (!selections.empty())
    for (const int r : subject.leaders()) record.selections.push_back(selections[static_cast<std::size_t>(r)]);
  record.memory = oracle_sum(gather_entries(report, remembered, root));
  return record;
}

Witness witness_step(Communicator& report, CountingCommunicator& counting, Synchroniser& sync,
                     std::span<const float> gradient, int root) {
  Subject subject(sync);
  const std::size_t n = subject.n();
  Witness w;
  const auto before = subject.residual();
  Dense accumulator(before.begin(), before.end());
  for (std::size_t i = 0; i < gradient.size(); ++i) accumulator[i] += gradient[i];
  const Dense memory_before = scatter(subject.memory(), n);
  counting.reset();
  Update update;
  w.record = record_step(report, subject, gradient, root, &update);  // gathers on `report`
  const Traffic traffic = counting.traffic();

  w.accumulators = gather_dense(report, accumulator, root);
  const auto after = subject.residual();
  w.residuals = gather_dense(report, Dense(after.begin(), after.end()), root);
  w.memory_before = add_up(gather_dense(report, memory_before, root));
  w.memory_after = add_up(gather_dense(report, scatter(subject.memory(), n), root));
  if (update.is_dense()) {
    const SparseVector sum = nonzeros(subject.outcome().dense_update);
    const auto sums = gather_entries(report, report.rank() == 0 ? sum : CooView{}, root);
    if (!sums.empty()) w.record.update = sums[0];
    const std::vector<float> values(accumulator.begin(), accumulator.end());
    w.record.selections = gather_entries(report, nonzeros(values), root);
  }
  w.sum.assign(n, 0.0);
  for (const auto& [i, v] : w.record.update) w.sum[i] = v;
  Dense mean(n, 0.0);
  update.for_each([&](Index i, float v) { mean[i] = v; });
  w.updates = gather_dense(report, mean, root);
  Workspace work;
  w.traffic.resize(static_cast<std::size_t>(report.size()));
  allgather(report, std::as_bytes(std::span(&traffic, 1)), std::as_writable_bytes(std::span(w.traffic)), work);
  return w;
}

}  // namespace oktopk
