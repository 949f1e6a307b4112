// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_table.h"

#include <fmt/format.h>

#include <cstdio>
#include <functional>

namespace oktopk {
namespace {

double quotient(double a, double b) { return b > 0 ? a / b : 0; }

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

// A reference row has no more than its name, its time and what follows from it.
Row reference_row(const Row& row, const std::string& name, double seconds) {
  Row out;
  out.preset = name;
  out.n = row.n;
  out.k = row.k;
  out.P = row.P;
  out.time = out.time_min = out.time_max = out.dense_time = seconds;
  out.axpy_time = row.axpy_time;
  return out;
}

}  // namespace

struct BenchTable::Column {
  const char* head;
  const char* unit;
  int width;  // negative: to the left
  std::function<std::string(const Row&, const References&)> cell;
};

std::vector<BenchTable::Column> BenchTable::columns() const {
  using R = const Row&;
  using Refs = const References&;
  std::vector<Column> all = {{"n", "(elements)", 11, [](R r, Refs) { return fixed(r.n, 0); }},
                             {"k", "", 8, [](R r, Refs) { return fixed(r.k, 0); }},
                             {"P", "", 4, [](R r, Refs) { return std::to_string(r.P); }},
                             {"preset", "", -14, [](R r, Refs) { return r.preset; }},
                             {"time", "(ms)", 9, [](R r, Refs) { return fixed(r.time * 1e3, 3); }}};
  const auto add = [&](Column column) { all.push_back(std::move(column)); };
  if (options_.spread) {
    add({"min", "(ms)", 9, [](R r, Refs) { return fixed(r.time_min * 1e3, 3); }});
    add({"max", "(ms)", 9, [](R r, Refs) { return fixed(r.time_max * 1e3, 3); }});
  }
  add({"dense", "result(ms)", 10, [](R r, Refs) { return fixed(r.dense_time * 1e3, 3); }});
  add({"x axpy", "", 7, [](R r, Refs) { return fixed(r.times_axpy(), 2); }});
  add({"x dense", "", 7, [](R r, Refs s) { return fixed(quotient(s.dense, r.time), 2); }});
  if (options_.mpi) add({"x mpi", "", 7, [](R r, Refs s) { return fixed(quotient(s.mpi, r.time), 2); }});
  add({"msgs", "(/rank)", 7, [](R r, Refs) { return fixed(r.messages, 0); }});
  add({"wire", "(KiB/rank)", 10, [](R r, Refs) { return fixed(r.bytes / 1024, 1); }});
  add({"words/k", "", 8, [](R r, Refs) { return fixed(r.words_per_k(), 3); }});
  add({"mean", "", 8, [](R r, Refs) { return fixed(r.words_per_k_mean(), 3); }});
  add({"predicted", "words/k", 9, [](R r, Refs) { return fixed(quotient(r.predicted.expected.bytes / 4, r.k), 3); }});
  add({"x bound", "", 8, [](R r, Refs) { return fixed(r.bytes_over_bound(), 3); }});
  add({"eff.bw", "(GB/s)", 7, [](R r, Refs) { return fixed(r.effective_bandwidth() / 1e9, 2); }});
  add({"#wrong", "", 6, [](R r, Refs) { return r.wrong < 0 ? "N/A" : std::to_string(r.wrong); }});
  return all;
}

namespace {

// Columns side by side; `text(column)` may give any string.
template <class Columns, class Text>
void print_line(const char* start, const Columns& columns, const Text& text) {
  fmt::print("{}", start);
  for (const auto& column : columns) {
    if (column.width < 0)
      fmt::print(" {:<{}}", text(column), -column.width);
    else
      fmt::print(" {:>{}}", text(column), column.width);
  }
  fmt::print("\n");
}

}  // namespace

void BenchTable::print_head() const {
  print_line("#", columns(), [](const Column& column) { return column.head; });
  print_line("#", columns(), [](const Column& column) { return column.unit; });
}

void BenchTable::print_references(const Row& row, const References& references) const {
  const auto print_time = [&](const std::string& name, double seconds) {
    const Row reference = reference_row(row, name, seconds);
    int column = 0;
    const int last = 8 + (options_.spread ? 2 : 0) + (options_.mpi ? 1 : 0);
    print_line(" ", columns(),
               [&](const Column& c) { return column++ < last ? c.cell(reference, references) : std::string(); });
  };
  print_time("axpy-limit", row.axpy_time);
  if (references.mpi > 0) print_time("MPI_Allreduce", references.mpi);
}

void BenchTable::print(const Row& row, const References& references) const {
  print_line(" ", columns(), [&](const Column& column) { return column.cell(row, references); });
  if (options_.breakdown) {
    fmt::print("#   {}:", row.preset);
    for (const StepPhase& phase : row.phases)
      if (phase.name != "inside" || phase.seconds > 0)  // none without nodes
        fmt::print(" {} {:.3f} ms,", phase.name, phase.seconds * 1e3);
    fmt::print(" axpy {:.3f} ms\n", row.axpy_time * 1e3);
  }
  if (row.wrong > 0) fmt::print("# ^ {}\n", row.detail);
  std::fflush(stdout);
}

nlohmann::json to_json(const Row& row, const References& references) {
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
          {"mpi_allreduce_time", references.mpi},
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
          {"speedup_over_dense", quotient(references.dense, row.time)},
          {"speedup_over_mpi", quotient(references.mpi, row.time)},
          {"wrong", row.wrong}};
}

}  // namespace oktopk
