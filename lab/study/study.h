// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab study NAME`: experiments about the algorithms themselves, not about their speed. A study gets a task,
// runs it on the ranks and gives findings: rows for JSON, tables for the terminal and the page, plots for the page. To
// add one: a file with its measurement and its findings, a row in study.cc, a section in docs/studies.md.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lab/bars.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/laws/gradient_stream.h"
#include "oktopk/laws/witness.h"
#include "oktopk/reduce/reducer.h"
#include "tools/text.h"
#include "tools/train/network.h"
#include "tools/train/problem.h"

namespace oktopk {

// The settings of one study, checked.
struct StudyTask {
  std::function<void(int P, const std::function<void(Communicator&)>& body)> run_ranks;
  Index n = 0;
  std::vector<double> densities;
  std::vector<int> ranks;
  int steps = 0;
  std::uint64_t seed = 1;
  int seeds = 3;  // learning: runs of each row
  std::vector<std::string> data;

  // The gradients of one rank, from a stream of these data: an input of oktopk/laws/inputs.h, or
  //   calm       layered, half of the variance a signal that all ranks share and that turns slowly
  //   rough      the same with the events of StreamEvent::rough
  //   identical  gaussian, the same on all ranks
  GradientStream stream(const std::string& data, int rank) const;

  template <class Use>
  void for_each_gradient(const std::string& name, int rank, const Use& use) const {
    GradientStream gradients = stream(name, rank);
    for (int step = 0; step < steps; ++step) use(gradients.at(static_cast<std::uint64_t>(step)));
  }
};

// UsageError lists the names that exist.
void check_stream(const std::string& data);

struct Findings {
  std::vector<std::string> head;                  // the settings, in words
  nlohmann::json rows = nlohmann::json::array();  // for JSON
  std::vector<Table> tables;
  nlohmann::json plots = nlohmann::json::array();  // Plot or Bars
  std::vector<std::string> notes;                  // how to read the tables
};

Findings study_xi(const StudyTask& task);
Findings study_counts(const StudyTask& task);
Findings study_load(const StudyTask& task);
Findings study_fill_in(const StudyTask& task);
Findings study_mass(const StudyTask& task);
Findings study_learning(const StudyTask& task);

// Runs body(comm) on P ranks and returns rank 0's result. With MPI, the other processes get a default value.
template <class Body>
auto on_ranks(const StudyTask& task, int P, Body body) {
  using Run = std::invoke_result_t<Body&, Communicator&>;
  Run first{};
  task.run_ranks(P, [&](Communicator& comm) {
    Run run = body(comm);
    if (comm.rank() == 0) first = std::move(run);
  });
  return first;
}

ReducerOptions method_of(std::string_view preset, double density);

// Standard deviation of the sample; 0 for fewer than two.
double deviation_of(std::span<const double> values);
// Largest / mean: 1 is even. 1 if all are zero or there are none.
double imbalance(std::span<const double> values);

// Each column's mean: by_rank[r][step] -> [step].
std::vector<double> mean_over_ranks(std::span<const std::vector<double>> by_rank);

double norm1(std::span<const double> values);
double norm2(std::span<const double> values);

// Formats of a field that is an array of numbers.
Column::Format mean(int decimals);
Column::Format largest(int decimals);

// The rows that have the field `key`.
Table make_table(const std::string& caption, const std::vector<Column>& columns, const nlohmann::json& rows,
                 const std::string& key = "data");

// y over 0, 1, 2, ...
Line over_steps(const std::string& name, const std::vector<double>& y);

// The problem and the network that the studies xi and learning train.
struct SmallTraining {
  LearningProblem problem;
  std::string model;
};

// The largest mlp:h,h/2 with at most `most` weights. UsageError if there is none to speak of.
inline SmallTraining small_training(Index most, const TeacherOptions& options) {
  constexpr Index kFewest = 512;
  require(most >= kFewest, "n = ", most, ", but training needs at least ", kFewest, " weights");
  const auto weights_of = [&](int hidden) {
    return (options.features + 1) * hidden + (hidden + 1) * (hidden / 2) + (hidden / 2 + 1) * options.classes;
  };
  int hidden = 2;
  while (weights_of(hidden + 2) <= static_cast<int>(most)) hidden += 2;
  return {make_teacher(options), "mlp:" + std::to_string(hidden) + "," + std::to_string(hidden / 2)};
}

// ---- Parts of the studies, for their tests ----

struct XiState {
  std::vector<Dense> accumulators;  // by rank: a G_i + e_i
  // Owner memory of all ranks, or empty. The paper has none. Entries that were sent and not applied are in the memory
  // and in no e_i, so the memory takes part in both sums.
  Dense memory = {};
  Dense gradient = {};  // a G_t, the mean over the ranks
};
Dense top_of(const Dense& x, std::size_t k);  // the rest is zero; among equals, smaller indices
double xi_of(const XiState& state, std::size_t k);
// The same with the applied update (the mean) in place of the second Topk.
double xi_applied(const XiState& state, const Dense& applied, std::size_t k);

// The union of m ranks' exact selections, as it arises in the phases of a halving reduce-scatter: ranks i, i + P/m,
// i + 2P/m, ...; mean over i.
struct UnionSize {
  int m = 1;
  double per_k = 1;
};
std::vector<UnionSize> union_sizes(const std::vector<std::vector<Index>>& selections, std::size_t k);
// k of n entries at random and independent on m ranks: the expected union, per k.
double independent_union(double n, double k, int m);

// One exchange of a step, as a rank saw it.
struct Exchange {
  std::size_t messages_received = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
};
// One rank's step, seen from outside. REQUIRES: P >= 4, so that the split cannot be mistaken.
struct StepLoad {
  double split = 0, share = 0, total = 0;  // bytes
  std::size_t after_split = 0;             // exchanges
};
StepLoad load_of(std::span<const Exchange> exchanges, int P);
// How many of the indices each of P owners has when tiles of 256 are dealt round.
std::vector<double> dealt_counts(std::span<const Index> idx, int P);

}  // namespace oktopk
