// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_table.h"

#include <fmt/format.h>

#include <utility>

namespace oktopk {
namespace {

double quotient(double a, double b) { return b > 0 ? a / b : 0; }

std::string milliseconds(double seconds) { return format_fixed(seconds * 1e3, 3); }

std::vector<TextTable::Column> texts_of(const auto& columns) {
  std::vector<TextTable::Column> texts;
  for (const auto& column : columns) texts.push_back(column.text);
  return texts;
}

}  // namespace

std::vector<BenchTable::Column> BenchTable::columns(const Options& options) {
  using R = const Row&;
  std::vector<Column> all = {{{"n", 11, "(elements)"}, [](R r) { return format_fixed(r.n, 0); }, true},
                             {{"k", 8}, [](R r) { return format_fixed(r.k, 0); }, true},
                             {{"P", 4}, [](R r) { return std::to_string(r.P); }, true},
                             {{"preset", -14}, [](R r) { return r.preset; }, true},
                             {{"time", 9, "(ms)"}, [](R r) { return milliseconds(r.time); }, true}};
  const auto add = [&](Column column) { all.push_back(std::move(column)); };
  if (options.spread) {
    add({{"min", 9, "(ms)"}, [](R r) { return milliseconds(r.time_min); }, true});
    add({{"max", 9, "(ms)"}, [](R r) { return milliseconds(r.time_max); }, true});
  }
  add({{"dense", 10, "result(ms)"}, [](R r) { return milliseconds(r.dense_time); }, true});
  add({{"x axpy", 7}, [](R r) { return format_fixed(r.times_axpy(), 2); }, true});
  add({{"x dense", 7}, [](R r) { return format_fixed(quotient(r.dense_reference, r.time), 2); }, true});
  if (options.mpi) add({{"x mpi", 7}, [](R r) { return format_fixed(quotient(r.mpi_reference, r.time), 2); }, true});
  add({{"msgs", 7, "(/rank)"}, [](R r) { return format_fixed(r.messages, 0); }});
  add({{"wire", 10, "(KiB/rank)"}, [](R r) { return format_fixed(r.bytes / 1024, 1); }});
  add({{"words/k", 8}, [](R r) { return format_fixed(r.words_per_k(), 3); }});
  add({{"mean", 8}, [](R r) { return format_fixed(r.words_per_k_mean(), 3); }});
  add({{"predicted", 9, "words/k"},
       [](R r) { return format_fixed(quotient(r.predicted.expected.bytes / 4, r.k), 3); }});
  add({{"x bound", 8}, [](R r) { return format_fixed(r.bytes_over_bound(), 3); }});
  add({{"eff.bw", 7, "(GB/s)"}, [](R r) { return format_fixed(r.effective_bandwidth() / 1e9, 2); }});
  add({{"#wrong", 6}, [](R r) { return r.wrong < 0 ? "N/A" : std::to_string(r.wrong); }});
  return all;
}

BenchTable::BenchTable(const Options& options, std::vector<Column> columns)
    : options_(options), columns_(std::move(columns)), table_(texts_of(columns_)) {}

void BenchTable::print_reference(Row row, const std::string& name, double seconds) const {
  row.preset = name;
  row.time = row.time_min = row.time_max = row.dense_time = seconds;
  std::vector<std::string> cells;
  for (const Column& column : columns_)
    if (column.is_of_reference) cells.push_back(column.cell(row));
  table_.print(cells);
}

void BenchTable::print_references(const Row& row) const {
  print_reference(row, "axpy-limit", row.axpy_time);
  if (row.mpi_reference > 0) print_reference(row, "MPI_Allreduce", row.mpi_reference);
}

void BenchTable::print(const Row& row) const {
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(column.cell(row));
  table_.print(cells);
  if (options_.breakdown) {
    fmt::print("#   {}:", row.preset);
    for (const StepPhase& phase : row.phases)
      if (phase.name != "inside" || phase.seconds > 0)  // without nodes there is no such phase
        fmt::print(" {} {:.3f} ms,", phase.name, phase.seconds * 1e3);
    fmt::print(" axpy {:.3f} ms\n", row.axpy_time * 1e3);
  }
  if (row.wrong > 0) fmt::print("# ^ {}\n", row.detail);
}

nlohmann::json to_json(const Row& row) {
  nlohmann::json phases;
  for (const StepPhase& phase : row.phases) phases[std::string(phase.name)] = phase.seconds;
  return {{"n", row.n},
          {"k", row.k},
          {"ranks", row.P},
          {"preset", row.preset},
          {"time", row.time},
          {"time_min", row.time_min},
          {"time_max", row.time_max},
          {"time_mad", row.time_deviation},
          {"dense_result_time", row.dense_time},
          {"axpy_time", row.axpy_time},
          {"mpi_allreduce_time", row.mpi_reference},
          {"times_axpy", row.times_axpy()},
          {"phases", phases},
          {"messages", row.messages},
          {"messages_mean", row.messages_mean},
          {"wire_bytes", row.bytes},
          {"wire_bytes_mean", row.bytes_mean},
          {"wire_over_bound", row.bytes_over_bound()},
          {"words_per_k", row.words_per_k()},
          {"words_per_k_mean", row.words_per_k_mean()},
          {"selected", row.selected},
          {"predicted_messages", row.predicted.expected.messages},
          {"predicted_bytes", row.predicted.expected.bytes},
          {"bound_messages", row.predicted.bound.messages},
          {"bound_bytes", row.predicted.bound.bytes},
          {"effective_bandwidth", row.effective_bandwidth()},
          {"speedup_over_dense", quotient(row.dense_reference, row.time)},
          {"speedup_over_mpi", quotient(row.mpi_reference, row.time)},
          {"wrong", row.wrong}};
}

}  // namespace oktopk
