// SPDX-License-Identifier: Apache-2.0
#include "tools/study/load.h"

#include <algorithm>
#include <memory>

#include "oktopk/base/error.h"
#include "tests/laws/witness.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

ReducerOptions traceable(ReducerOptions options, int P) {
  options.selector = SelectorKind::exact;
  options.allreduce.bucket = P;
  if (options.preset == "circulant") options.allreduce.skips = "direct";
  options.nan_policy = NanPolicy::local;
  return options;
}

std::vector<double> column(const std::vector<Dense>& by_rank, std::size_t c) {
  std::vector<double> values;
  for (const Dense& rank : by_rank) values.push_back(rank[c]);
  return values;
}

class LoadRunner {
 public:
  LoadRunner(Communicator& comm, Index n, const ReducerOptions& options)
      : comm_(comm), tracing_(comm), reducer_(tracing_, n, traceable(options, comm.size())) {}

  void step(std::span<const float> gradient) {
    tracing_.reset();
    reducer_.step(gradient);
    const StepLoad mine = load_of(tracing_.exchanges(), comm_.size());
    const auto ranks = gather_dense(comm_, {mine.split, mine.share, mine.total});
    run_.split.push_back(imbalance(column(ranks, 0)));
    run_.total.push_back(imbalance(column(ranks, 2)));
    bytes_.push_back(mean_of(column(ranks, 2)));
    run_.dealt.push_back(imbalance(add_up(gather_dense(comm_, dealt_counts(reducer_.sent().idx, comm_.size())))));
    if (reducer_.outcome().refreshed) return;
    run_.share.push_back(imbalance(column(ranks, 1)));
    // Sizes and shares are gathered in ceil(log2 P) exchanges each; one more is the balancing.
    const auto usual = 2 * static_cast<std::size_t>(ceil_log2(comm_.size()));
    const bool balanced = reducer_.allreduce().name() == "oktopk" && mine.after_split > usual;
    balanced_.push_back(balanced ? 1 : 0);
  }

  LoadRun result() {
    run_.bytes = mean_of(bytes_);
    run_.balanced = mean_of(balanced_);
    return run_;
  }

 private:
  Communicator& comm_;
  LoggingCommunicator tracing_;
  Reducer reducer_;
  std::vector<double> bytes_, balanced_;
  LoadRun run_;
};

}  // namespace

std::vector<double> dealt_counts(std::span<const Index> idx, int P) {
  constexpr Index kTile = 256;
  std::vector<double> counts(static_cast<std::size_t>(P), 0.0);
  for (const Index i : idx) ++counts[i / kTile % static_cast<Index>(P)];
  return counts;
}

StepLoad load_of(std::span<const Exchange> exchanges, int P) {
  const auto peers = static_cast<std::size_t>(P) - 1;
  const auto gather = static_cast<std::size_t>(ceil_log2(P));
  // The first: balancing, which comes later, may happen to have as many messages.
  const auto split =
      std::find_if(exchanges.begin(), exchanges.end(), [&](const Exchange& e) { return e.messages_received == peers; });
  require(P >= 4 && split != exchanges.end() && exchanges.size() >= gather,
          "load: this step has no exchange with P - 1 messages");
  StepLoad load;
  load.split = static_cast<double>(split->bytes_received);
  load.share = static_cast<double>(exchanges[exchanges.size() - gather].bytes_sent);
  load.after_split = static_cast<std::size_t>(exchanges.end() - split) - 1;
  for (const Exchange& e : exchanges) load.total += static_cast<double>(e.bytes_received);
  return load;
}

std::vector<LoadRun> measure_load(Communicator& comm, const LoadOptions& options) {
  require(comm.size() >= 4, "--ranks ", comm.size(), ": the phases can be told apart only from 4 ranks on");
  std::vector<std::unique_ptr<LoadRunner>> runners;
  for (const ReducerOptions& reducer : options.cases)
    runners.push_back(std::make_unique<LoadRunner>(comm, options.source.n, reducer));
  const Source source = make_source(options.source, comm.rank());
  std::vector<float> gradient;
  for (int step = 0; step < options.source.steps; ++step) {
    source(step, gradient);
    for (const auto& runner : runners) runner->step(gradient);
  }
  std::vector<LoadRun> runs;
  for (const auto& runner : runners) runs.push_back(runner->result());
  return runs;
}

}  // namespace oktopk
