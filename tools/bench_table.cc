// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_table.h"

#include <fmt/format.h>

#include <string_view>

namespace oktopk {
namespace {

double quotient(double a, double b) { return b > 0 ? a / b : 0; }

using R = const Row&;

struct Field {
  std::string_view key;  // in JSON; empty: not there
  double (*value)(R);
  TextTable::Column column = {};  // without a head: not in the table
  double scale = 1;               // of the column
  int digits = 3;                 // of the column
  bool is_of_reference = false;   // follows from the time alone
};

const std::vector<Field> kFields = {
    {"time", [](R r) { return r.time; }, {"time", 9, "(ms)"}, 1e3, 3, true},
    {"time_min", [](R r) { return r.time_min; }, {"min", 9, "(ms)"}, 1e3, 3, true},
    {"time_max", [](R r) { return r.time_max; }, {"max", 9, "(ms)"}, 1e3, 3, true},
    {"dense_result_time", [](R r) { return r.dense_time; }, {"dense", 10, "result(ms)"}, 1e3, 3, true},
    {"times_axpy", [](R r) { return r.times_axpy(); }, {"x axpy", 7}, 1, 2, true},
    {"speedup_over_dense", [](R r) { return quotient(r.dense_reference, r.time); }, {"x dense", 7}, 1, 2, true},
    {"speedup_over_mpi", [](R r) { return quotient(r.mpi_reference, r.time); }, {"x mpi", 7}, 1, 2, true},
    {"messages", [](R r) { return r.messages; }, {"msgs", 7, "(/rank)"}, 1, 0},
    {"wire_bytes", [](R r) { return r.bytes; }, {"wire", 10, "(KiB/rank)"}, 1.0 / 1024, 1},
    {"words_per_k", [](R r) { return r.words_per_k(); }, {"words/k", 8}},
    {"words_per_k_mean", [](R r) { return r.words_per_k_mean(); }, {"mean", 8}},
    {"", [](R r) { return quotient(r.predicted.expected.bytes / 4, r.k); }, {"predicted", 9, "words/k"}},
    {"wire_over_bound", [](R r) { return r.bytes_over_bound(); }, {"x bound", 8}},
    {"effective_bandwidth", [](R r) { return r.effective_bandwidth(); }, {"eff.bw", 7, "(GB/s)"}, 1e-9, 2},
    {"n", [](R r) { return r.n; }},
    {"k", [](R r) { return r.k; }},
    {"time_mad", [](R r) { return r.time_deviation; }},
    {"axpy_time", [](R r) { return r.axpy_time; }},
    {"mpi_allreduce_time", [](R r) { return r.mpi_reference; }},
    {"messages_mean", [](R r) { return r.messages_mean; }},
    {"wire_bytes_mean", [](R r) { return r.bytes_mean; }},
    {"selected", [](R r) { return r.selected; }},
    {"predicted_messages", [](R r) { return r.predicted.expected.messages; }},
    {"predicted_bytes", [](R r) { return r.predicted.expected.bytes; }},
    {"bound_messages", [](R r) { return r.predicted.bound.messages; }},
    {"bound_bytes", [](R r) { return r.predicted.bound.bytes; }}};

std::vector<Field> fields_of(const BenchTable::Options& options) {
  std::vector<Field> fields = kFields;
  std::erase_if(fields, [&](const Field& field) {
    const bool is_spread = field.key == "time_min" || field.key == "time_max";
    return field.column.head.empty() || (is_spread && !options.spread) ||
           (field.key == "speedup_over_mpi" && !options.mpi);
  });
  return fields;
}

TextTable make_table(const BenchTable::Options& options) {
  std::vector<TextTable::Column> columns = {{"n", 11, "(elements)"}, {"k", 8}, {"P", 4}, {"preset", -14}};
  for (const Field& field : fields_of(options)) columns.push_back(field.column);
  columns.push_back({"#wrong", 6});
  return TextTable(columns);
}

std::vector<std::string> cells_of(const Row& row, const BenchTable::Options& options, bool is_reference) {
  std::vector<std::string> cells = {format_fixed(row.n, 0), format_fixed(row.k, 0), std::to_string(row.P), row.preset};
  for (const Field& field : fields_of(options))
    if (!is_reference || field.is_of_reference)
      cells.push_back(format_fixed(field.scale * field.value(row), field.digits));
  return cells;
}

}  // namespace

BenchTable::BenchTable(const Options& options) : options_(options), table_(make_table(options)) {}

void BenchTable::print_reference(Row row, const std::string& name, double seconds) const {
  row.preset = name;
  row.time = row.time_min = row.time_max = row.dense_time = seconds;
  table_.print(cells_of(row, options_, true));
}

void BenchTable::print_references(const Row& row) const {
  print_reference(row, "axpy-limit", row.axpy_time);
  if (row.mpi_reference > 0) print_reference(row, "MPI_Allreduce", row.mpi_reference);
}

void BenchTable::print(const Row& row) const {
  std::vector<std::string> cells = cells_of(row, options_, false);
  cells.push_back(row.wrong < 0 ? "N/A" : std::to_string(row.wrong));
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
  nlohmann::json json = {{"ranks", row.P}, {"preset", row.preset}, {"wrong", row.wrong}};
  for (const Field& field : kFields)
    if (!field.key.empty()) json[std::string(field.key)] = field.value(row);
  for (const StepPhase& phase : row.phases) json["phases"][std::string(phase.name)] = phase.seconds;
  return json;
}

}  // namespace oktopk
