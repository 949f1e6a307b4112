// SPDX-License-Identifier: Apache-2.0
// `oktopk bench`: whole steps (accumulate, select, exchange, settle) of any presets over a range of
// sizes, in the manner of nccl-tests. Always says what was moved, and with -c whether the result is
// right.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "tools/commands.h"
#include "tools/measure.h"
#include "tools/results.h"
#include "tools/text.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

struct BenchOptions {
  MethodOptions method;
  std::string begin = "1M", end, factor = "2";
  std::string ranks;
  std::string transport = "threads";
  std::string data = "gaussian";
  std::string json_file;
  int warm_up = 5;
  int iterations = 20;
  bool check = false;
  bool feedback = false;
  std::uint64_t seed = 1;
};

std::vector<Index> sizes(const BenchOptions& o) {
  const std::uint64_t begin = parse_count(o.begin);
  const std::uint64_t end = o.end.empty() ? begin : parse_count(o.end);
  const std::uint64_t factor = parse_count(o.factor);
  require(begin >= 1 && begin <= end, "-b ", o.begin, " -e ", o.end,
          ": sizes must satisfy 1 <= b <= e");
  require(end < (std::uint64_t{1} << 32), "n = ", end, ", but n must be below 2^32");
  require(factor >= 2, "-f ", o.factor, ": the factor must be at least 2");
  std::vector<Index> out;
  for (std::uint64_t n = begin; n <= end; n *= factor) out.push_back(static_cast<Index>(n));
  return out;
}

void print_head(const BenchOptions& o) {
  fmt::print(
      "# oktopk {} bench: {}, density {}, codec {}, skips {}, data {}, {} warm-up, {} iterations\n",
      OKTOPK_VERSION, o.transport, o.method.density, o.method.codec, o.method.skips, o.data,
      o.warm_up, o.iterations);
  fmt::print(
      "# {:>10} {:>9} {:>4} {:<10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8} {:>8} {:>9} {:>8} {:>8} "
      "{:>7}\n",
      "n", "k", "P", "preset", "time", "min", "max", "msgs", "wire", "words/k", "mean", "predicted",
      "eff.bw", "x dense", "#wrong");
  fmt::print(
      "# {:>10} {:>9} {:>4} {:<10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8} {:>8} {:>9} {:>8} {:>8} "
      "{:>7}\n",
      "(elements)", "", "", "", "(ms)", "(ms)", "(ms)", "(/rank)", "(KiB/rank)", "", "", "words/k",
      "(GB/s)", "", "");
}

void print_row(const Row& row, double dense_time) {
  fmt::print(
      "{:>12.0f} {:>9.0f} {:>4} {:<10} {:>10.3f} {:>10.3f} {:>10.3f} {:>7.0f} {:>10.1f} {:>8.3f} "
      "{:>8.3f} "
      "{:>9.3f} {:>8.2f} {:>8.2f} {:>7}\n",
      row.n, row.k, row.P, row.preset, row.time * 1e3, row.time_min * 1e3, row.time_max * 1e3,
      row.messages, row.bytes / 1024, row.words_per_k(), row.words_per_k_mean(),
      row.k > 0 ? row.predicted.expected.bytes / 4 / row.k : 0.0, row.effective_bandwidth() / 1e9,
      row.time > 0 ? dense_time / row.time : 0.0,
      row.wrong < 0 ? "N/A" : std::to_string(row.wrong));
  if (row.wrong > 0) fmt::print("# ^ {}\n", row.detail);
  std::fflush(stdout);
}

nlohmann::json to_json(const Row& row, double dense_time) {
  return {{"n", row.n},
          {"k", row.k},
          {"ranks", row.P},
          {"preset", row.preset},
          {"time", row.time},
          {"time_min", row.time_min},
          {"time_max", row.time_max},
          {"messages", row.messages},
          {"messages_mean", row.messages_mean},
          {"wire_bytes", row.bytes},
          {"wire_bytes_mean", row.bytes_mean},
          {"words_per_k", row.words_per_k()},
          {"words_per_k_mean", row.words_per_k_mean()},
          {"selected", row.selected},
          {"predicted_messages", row.predicted.expected.messages},
          {"predicted_bytes", row.predicted.expected.bytes},
          {"bound_messages", row.predicted.bound.messages},
          {"bound_bytes", row.predicted.bound.bytes},
          {"effective_bandwidth", row.effective_bandwidth()},
          {"speedup_over_dense", row.time > 0 ? dense_time / row.time : 0.0},
          {"wrong", row.wrong}};
}

// The ranks do not compare notes: what is counted is the algorithm's own.
MeasureOptions measure_options(const BenchOptions& o, const std::string& preset, Index n) {
  ReducerOptions reducer = o.method.reducer(preset);
  reducer.nan_policy = NanPolicy::local;
  return {.reducer = reducer,
          .n = n,
          .data = find_input(o.data),
          .warm_up = o.warm_up,
          .iterations = o.iterations,
          .check = o.check,
          .feedback = o.feedback,
          .seed = o.seed};
}

int run_bench(const BenchOptions& o) {
  const auto presets = o.method.names();
  const auto counts = sizes(o);
  require(o.warm_up >= 0, "-w ", o.warm_up, ": the number of warm-up steps must not be negative");
  require(o.iterations >= 1, "-n ", o.iterations, ": at least one iteration is needed");
  Worlds worlds(o.transport);
  const std::vector<int> ranks =
      o.ranks.empty() ? std::vector<int>{worlds.default_size()} : parse_ranks(o.ranks, "--ranks");
  o.method.check(ranks);
  find_input(o.data);
  check_writable(o.json_file);
  nlohmann::json rows = nlohmann::json::array();
  bool wrong = false;
  if (worlds.is_root()) print_head(o);
  for (const int P : ranks)
    worlds.run(P, [&](Station& station) {
      const bool prints = station.comm.rank() == 0;
      for (const Index n : counts) {
        const Row dense = measure(station.comm, measure_options(o, "dense", n));
        for (const std::string& preset : presets) {
          const Row row =
              preset == "dense" ? dense : measure(station.comm, measure_options(o, preset, n));
          if (!prints) continue;
          print_row(row, dense.time);
          rows.push_back(to_json(row, dense.time));
          wrong = wrong || row.wrong > 0;
        }
      }
    });
  if (!worlds.is_root()) return 0;
  if (o.check) fmt::print("# wrong values: {}\n", wrong ? "FAILED" : "0 OK");
  write_json(o.json_file, {{"tool", "oktopk bench"},
                           {"version", OKTOPK_VERSION},
                           {"transport", o.transport},
                           {"data", o.data},
                           {"warm_up", o.warm_up},
                           {"iterations", o.iterations},
                           {"feedback", o.feedback},
                           {"options", o.method.json()},
                           {"rows", rows}});
  return wrong ? 1 : 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand(
      "bench",
      "times whole steps, counts what they move, checks them (-c); in the manner of nccl-tests");
  auto o = std::make_shared<BenchOptions>();
  sub->add_option("-b,--begin", o->begin, "smallest n in elements (K, M, G)")
      ->capture_default_str();
  sub->add_option("-e,--end", o->end, "largest n (default: the smallest)");
  sub->add_option("-f,--factor", o->factor, "from one n to the next")->capture_default_str();
  sub->add_option("-w,--warmup", o->warm_up, "steps before the clock starts")
      ->capture_default_str();
  sub->add_option("-n,--iters", o->iterations, "timed steps")->capture_default_str();
  sub->add_flag("-c,--check", o->check,
                "compare one more step with the oracle; exit 1 if it is wrong");
  sub->add_flag("--feedback", o->feedback,
                "keep residuals between steps, as training does (default: each step starts anew)");
  sub->add_option("-J,--json", o->json_file, "also write the rows to this file");
  sub->add_option("--ranks", o->ranks,
                  "number of ranks, or several with commas (default: 4, or all of MPI's)");
  sub->add_option("--transport", o->transport, "threads or mpi")->capture_default_str();
  sub->add_option("--data", o->data, "gaussian, laplace, layered (oktopk list has all)")
      ->capture_default_str();
  sub->add_option("--seed", o->seed, "of the generated gradients")->capture_default_str();
  o->method.add_to(*sub);
  sub->footer(
      "Columns: time, min, max: median over the ranks, fastest and slowest rank, of each rank's "
      "median step.\n"
      "msgs, wire: per step on the busiest rank, the larger of sent and received exchange by "
      "exchange.\n"
      "words/k: 4-byte words of wire per k, median over the steps; mean: with the rare refresh "
      "steps.\n"
      "predicted: the cost model's words/k. eff.bw: 4n bytes / time. #wrong: entries that differ "
      "from the oracle.");
  sub->callback([&action, o] { action = [o] { return run_bench(*o); }; });
}

}  // namespace oktopk
