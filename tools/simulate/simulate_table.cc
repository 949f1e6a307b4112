// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/simulate_table.h"

#include <fmt/format.h>

#include <cstdio>

namespace oktopk {
namespace {

constexpr auto kLine =
    "{} {:>10} {:>8} {:>5} {:<10} {:<46} {:<7} {:>11} {:>11} {:>11} {:>6} {:>10} {:>8} "
    "{:>11} "
    "{:>8} {:>7} {:>8}\n";

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string milliseconds(double seconds) { return fixed(seconds * 1e3, 4); }
std::string quotient(double a, double b, int digits) { return a > 0 && b > 0 ? fixed(a / b, digits) : "-"; }

}  // namespace

double SimulateTableRow::over_bound() const {
  const double bound = 4 * 2 * row.k * (row.P - 1) / row.P;
  return bound > 0 ? row.bytes / bound : 0;
}

void print_simulate_head() {
  fmt::print(kLine, "#", "n", "k", "P", "preset", "method", "carries", "steady", "refresh", "mean", "msgs", "wire",
             "words/k", "predicted", "sim/pred", "x dense", "x bound");
  fmt::print(kLine, "#", "(elements)", "", "", "", "", "", "(ms)", "(ms)", "(ms)", "(/rank)", "(KiB/rank)", "", "(ms)",
             "", "", "");
}

void print_simulate_row(const SimulateTableRow& r) {
  fmt::print(kLine, " ", fixed(r.row.n, 0), fixed(r.row.k, 0), r.row.P, r.row.preset, to_string(r.method),
             r.row.carries_data ? "data" : "sizes", milliseconds(r.row.steady), milliseconds(r.row.refresh),
             milliseconds(r.row.mean), fixed(r.row.messages, 0), fixed(r.row.bytes / 1024, 1),
             fixed(r.words_per_k(), 3), milliseconds(r.predicted), quotient(r.row.steady, r.predicted, 3),
             quotient(r.dense_seconds, r.row.mean, 2), fixed(r.over_bound(), 3));
  std::fflush(stdout);
}

nlohmann::json to_json(const SimulateTableRow& r) {
  nlohmann::json json = to_json(r.row);
  json["method"] = to_string(r.method);
  json["codec"] = to_string(r.method.codec);
  json["skips"] = r.method.skips;
  json["group"] = r.method.group;
  json["predicted"] = r.predicted;
  json["dense"] = r.dense_seconds;
  json["words_per_k"] = r.words_per_k();
  json["wire_over_bound"] = r.over_bound();
  return json;
}

}  // namespace oktopk
