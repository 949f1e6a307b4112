// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study load`: how evenly the work is spread over the ranks, with and without re-cutting and balancing,
// seen from outside by the exchanges of a step:
//   split   the one exchange with P - 1 messages (oktopk is given a bucket of P, circulant direct skips): the bytes
//           that an owner receives of its region from the others
//   share   the bytes that a rank sends in the first round of the gather, which is the last ceil(log2 P) exchanges of
//           the step: its own share and nothing else
// Framing is included. All selections are exact, so that cuts alone make the difference.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "lab/study/study.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tools/statistics.h"

namespace oktopk {
namespace {

using nlohmann::json;

constexpr double kNeverBalance = 1e9;
constexpr int kTau = 16;

struct Case {
  const char* name;
  const char* preset;
  bool recuts;     // oktopk: repartition every kTau steps, or once
  double trigger;  // oktopk: of balancing
};
constexpr Case kCases[] = {
    {"topkdsa: equal regions", "topkdsa", false, kNeverBalance},
    {"oktopk: one vote", "oktopk", false, kNeverBalance},
    {"oktopk: one vote, balance", "oktopk", false, 4},
    {"oktopk: tau = 16", "oktopk", true, kNeverBalance},
    {"oktopk: tau = 16, balance", "oktopk", true, 4},
    {"oktopk: tau = 16, balance at 1.2", "oktopk", true, 1.2},
    {"circulant: recut on demand", "circulant", true, kNeverBalance},
};

ReducerOptions options_of(const Case& c, double density, int P) {
  ReducerOptions options = method_of(c.preset, density);
  options.selector = "exact";
  options.allreduce.tau = c.recuts ? kTau : std::numeric_limits<int>::max();
  options.allreduce.balance_trigger = c.trigger;
  options.allreduce.bucket = P;
  if (options.preset == "circulant") options.allreduce.skips = "direct";
  options.nan_policy = NanPolicy::local;
  return options;
}

struct LoggedExchange {
  std::size_t at;  // in exchanges
  std::span<const Recv> recvs;
};

// Logs every exchange of one step.
class LoggingCommunicator final : public TrackingCommunicator<LoggedExchange> {
 public:
  explicit LoggingCommunicator(Communicator& inner) : TrackingCommunicator(inner) {}

  std::unique_ptr<Communicator> split(int color, int key) override { return inner().split(color, key); }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const std::uint64_t ticket = inner().begin(sends, recvs);
    keep(ticket, {exchanges.size(), recvs});
    exchanges.emplace_back();
    for (const Send& send : sends) exchanges.back().bytes_sent += send.bytes.size();
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    const LoggedExchange seen = take(ticket);
    inner().finish(ticket);
    exchanges[seen.at].messages_received = seen.recvs.size();
    for (const Recv& recv : seen.recvs) exchanges[seen.at].bytes_received += recv.size;
  }

  std::vector<Exchange> exchanges;  // in the order begun
};

// Per step, largest / mean over the ranks. Shares: only of steps that do not evaluate thresholds, because those gather
// everything. dealt: entries per owner if tiles of 256 indices were dealt round to the ranks instead of regions.
class LoadRun {
 public:
  LoadRun(Communicator& comm, Index n, const ReducerOptions& options)
      : comm_(comm), logging_(comm), reducer_(logging_, n, only_used(options)) {}

  void step(std::span<const float> gradient) {
    logging_.exchanges.clear();
    reducer_.step(gradient);
    const StepLoad mine = load_of(logging_.exchanges, comm_.size());
    const auto totals = ask_all(comm_, mine.total);
    split_.push_back(imbalance(ask_all(comm_, mine.split)));
    total_.push_back(imbalance(totals));
    bytes_.push_back(mean_of(totals));
    dealt_.push_back(imbalance(add_up(gather_dense(comm_, dealt_counts(reducer_.sent().idx, comm_.size())))));
    if (state_of(reducer_).outcome.refreshed) return;
    share_.push_back(imbalance(ask_all(comm_, mine.share)));
    // Sizes and shares are gathered in ceil(log2 P) exchanges each; one more is the balancing.
    const auto usual = 2 * static_cast<std::size_t>(ceil_log2(comm_.size()));
    balanced_.push_back(state_of(reducer_).allreduce->name() == "oktopk" && mine.after_split > usual ? 1 : 0);
  }

  json row() const {
    return {{"preset", state_of(reducer_).allreduce->name()},
            {"ranks", comm_.size()},
            {"split", split_},
            {"share", share_},
            {"total", total_},
            {"dealt", dealt_},
            {"bytes", mean_of(bytes_)},
            {"balanced", mean_of(balanced_)}};
  }

 private:
  Communicator& comm_;
  LoggingCommunicator logging_;
  Reducer reducer_;
  Dense split_, share_, total_, dealt_;
  Dense bytes_;     // received per rank
  Dense balanced_;  // oktopk: 1 if shares were balanced
};

// A row for each case.
json measure_load(Communicator& comm, const StudyTask& task, const std::string& data) {
  std::vector<std::unique_ptr<LoadRun>> runs;
  for (const Case& c : kCases)
    runs.push_back(std::make_unique<LoadRun>(comm, task.n, options_of(c, task.densities.front(), comm.size())));
  task.for_each_gradient(data, comm.rank(), [&](std::span<const float> gradient) {
    for (const auto& run : runs) run->step(gradient);
  });
  json rows = json::array();
  for (std::size_t c = 0; c < runs.size(); ++c) {
    rows.push_back(runs[c]->row());
    rows.back().update({{"case", kCases[c].name}, {"data", data}});
  }
  return rows;
}

// One bar per case and data.
Bars bars_of(const std::string& title, const std::vector<std::string>& data) {
  Bars bars{.title = title, .y_label = "largest / mean", .groups = data, .references = {1}, .reference_label = "even"};
  for (const Case& c : kCases) bars.sets.push_back({.name = c.name});
  return bars;
}

std::vector<Column> load_columns() {
  const auto percent = [](double share) { return fmt::format("{:.0f}%", 100 * share); };
  return {{"case", "case"},
          {"data", "data"},
          {"P", "ranks"},
          {"split mean", "split", mean(2)},
          {"max", "split", largest(2)},
          {"share mean", "share", mean(2)},
          {"max", "share", largest(2)},
          {"total mean", "total", mean(2)},
          {"tiles", "dealt", mean(2)},
          {"KiB/rank", "bytes", fixed(2, 1.0 / 1024)},
          {"balanced", "balanced", percent}};
}

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
  // The first one: balancing, which comes later, may have as many messages.
  const auto split = std::ranges::find(exchanges, peers, &Exchange::messages_received);
  require(P >= 4 && split != exchanges.end() && exchanges.size() >= gather,
          "load: this step has no exchange with P - 1 messages");
  StepLoad load;
  load.split = static_cast<double>(split->bytes_received);
  load.share = static_cast<double>(exchanges[exchanges.size() - gather].bytes_sent);
  load.after_split = static_cast<std::size_t>(exchanges.end() - split) - 1;
  for (const Exchange& e : exchanges) load.total += static_cast<double>(e.bytes_received);
  return load;
}

Findings study_load(const StudyTask& task) {
  for (const int P : task.ranks) require(P >= 4, "--ranks ", P, ": the phases can be told apart only from 4 ranks on");
  Findings out;
  out.head = {fmt::format("n = {}, density {:g}, {} steps; largest / mean over the ranks", task.n,
                          task.densities.front(), task.steps)};
  for (const int P : task.ranks) {
    Bars split = bars_of(fmt::format("Split: received by owners, P = {}", P), task.data);
    Bars share = bars_of(fmt::format("Gather: the owners' shares, P = {}", P), task.data);
    for (const std::string& data : task.data) {
      const json rows = on_ranks(task, P, [&](Communicator& comm) { return measure_load(comm, task, data); });
      Plot plot{.title = fmt::format("Split over the steps: {}, P = {}", data, P),
                .x_label = "step",
                .y_label = "largest / mean"};
      for (std::size_t c = 0; c < rows.size(); ++c) {
        out.rows.push_back(rows[c]);
        split.sets[c].values.push_back(mean_of(rows[c]["split"].get<Dense>()));
        share.sets[c].values.push_back(mean_of(rows[c]["share"].get<Dense>()));
        // Balancing does not change the split.
        if (kCases[c].trigger == kNeverBalance) plot.series.push_back(over_steps(kCases[c].name, rows[c]["split"]));
      }
      out.plots.push_back(plot);
    }
    out.plots.insert(out.plots.end(), {split, share});
  }
  out.tables = {make_table("bytes per rank, largest / mean", load_columns(), out.rows)};
  out.notes = {
      "tiles: entries per owner if tiles of 256 indices were dealt round to the ranks instead of regions; an owner's "
      "own entries count.",
      "split: received in the one exchange with P - 1 messages; an owner's own entries cross no wire and are not in "
      "it. "
      "share: sent in the first round of the gather, after balancing; only of steps that evaluate nothing. Frame "
      "headers are included in both.",
      "total: all bytes that a rank receives. balanced: part of those steps in which oktopk balanced.",
      "Selections are exact everywhere; circulant runs with direct skips."};
  return out;
}

}  // namespace oktopk
