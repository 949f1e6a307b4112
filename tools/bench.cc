// SPDX-License-Identifier: Apache-2.0
// `oktopk bench`: whole steps (accumulate, select, exchange, settle) of any presets over a range of sizes, in the
// manner of nccl-tests, beside an in-place axpy and MPI_Allreduce. Counts messages and bytes; with -c, checks the
// result.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "oktopk/base/error.h"
#include "oktopk/base/simd.h"
#include "tools/commands.h"
#include "tools/measure.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

constexpr int kShortWarmUp = 5;
constexpr int kLongWarmUp = 400;

struct BenchOptions {
  MethodOptions method;
  SizeOptions size;
  ComputeOptions compute;
  WorldOptions world;
  std::string data = "gaussian";
  std::string event = "none";
  std::string json_file, trace_file, flight_folder;
  double shared = 0;
  std::optional<int> warm_up;
  int iterations = 20;
  bool check = false;
  bool tentative = false;
  bool in_place = false;
  bool breakdown = false;
  std::uint64_t seed = 1;

  // Residuals and owner memory start at zero and are stationary after about n/k steps.
  int sparse_warm_up() const {
    if (warm_up) return *warm_up;
    return std::clamp(static_cast<int>(std::ceil(2 / method.density)), kShortWarmUp, kLongWarmUp);
  }
  StreamSpec stream(Index n) const {
    return {.data = find_input(data),
            .n = n,
            .shared = shared,
            .event = find_stream_event(event),
            .steps = static_cast<std::uint64_t>(std::max(1, sparse_warm_up() + iterations)),
            .seed = seed};
  }
};

void print_title(const BenchOptions& o) {
  fmt::print(
      "# oktopk {} bench: {}{}, density {}, codec {}, skips {}, data {}, shared {}, "
      "{} warm-up, {} iterations, {}, {} thread{} per rank\n",
      OKTOPK_VERSION, o.world.transport, o.in_place ? " in place" : "", o.method.density, o.method.codec,
      o.method.skips, o.data, o.shared, o.sparse_warm_up(), o.iterations, to_string(simd_level()), o.compute.threads,
      o.compute.threads == 1 ? "" : "s");
}

std::string wrong_entries(const nlohmann::json& wrong) { return wrong < 0 ? "N/A" : wrong.dump(); }

TextTable bench_table(bool has_mpi) {
  const auto ms = fixed(3, 1e3);
  std::vector<Column> columns = {{"n", "n", fixed(0), 11, "(elements)"},
                                 {"k", "k", fixed(0), 8},
                                 {"P", "ranks", {}, 4},
                                 {"preset", "preset", {}, -14},
                                 {"time", "time", ms, 9, "(ms)"},
                                 {"dense", "dense_result_time", ms, 10, "result(ms)"},
                                 {"x axpy", "times_axpy", fixed(2), 7},
                                 {"x dense", "speedup_over_dense", fixed(2), 7},
                                 {"x mpi", "speedup_over_mpi", fixed(2), 7},
                                 {"msgs", "messages", fixed(0), 7, "(/rank)"},
                                 {"wire", "wire_bytes", fixed(1, 1.0 / 1024), 10, "(KiB/rank)"},
                                 {"words/k", "words_per_k", fixed(3), 8},
                                 {"mean", "words_per_k_mean", fixed(3), 8},
                                 {"predicted", "", words_per_k("predicted_bytes"), 9, "words/k"},
                                 {"x bound", "wire_over_bound", fixed(3), 8},
                                 {"eff.bw", "effective_bandwidth", fixed(2, 1e-9), 7, "(GB/s)"},
                                 {"#wrong", "wrong", wrong_entries, 6}};
  std::erase_if(columns, [&](const Column& column) { return column.head == "x mpi" && !has_mpi; });
  return TextTable(columns);
}

// Prints the rows of one n on one world, beside the times of what they are compared with.
class RowPrinter {
 public:
  RowPrinter(const BenchOptions& o, const TextTable& table, nlohmann::json dense, double mpi_seconds)
      : o_(o), table_(table), dense_(std::move(dense)), mpi_seconds_(mpi_seconds) {}

  void print_references() const {
    print_reference("axpy-limit", dense_["axpy_time"]);
    if (mpi_seconds_ > 0) print_reference("MPI_Allreduce", mpi_seconds_);
  }

  // Returns the row with its comparisons.
  nlohmann::json print(nlohmann::json row) const {
    compare(row);
    table_.print(row);
    if (o_.breakdown) print_phases(row);
    if (row.contains("detail")) fmt::print("# ^ {}\n", row["detail"].get<std::string>());
    return row;
  }

 private:
  void compare(nlohmann::json& row) const {
    const auto quotient = [](double a, double b) { return b > 0 ? a / b : 0; };
    row["times_axpy"] = quotient(row["time"], row["axpy_time"]);
    row["speedup_over_dense"] = quotient(dense_["time"], row["time"]);
    row["speedup_over_mpi"] = quotient(mpi_seconds_, row["time"]);
    row["mpi_allreduce_time"] = mpi_seconds_;
  }

  void print_reference(const char* name, double seconds) const {
    nlohmann::json row = {{"preset", name}};
    for (const char* key : {"n", "k", "ranks", "axpy_time"}) row[key] = dense_[key];
    for (const char* key : {"time", "time_min", "time_max", "dense_result_time"}) row[key] = seconds;
    compare(row);
    table_.print(row);
  }

  static void print_phases(const nlohmann::json& row) {
    fmt::print("#   {}:", row["preset"].get<std::string>());
    for (const char* phase : {"check", "select", "exchange", "settle", "inside", "wire"}) {
      const double seconds = row["phases"][phase];
      if (phase != std::string_view("inside") || seconds > 0)  // without nodes there is no such phase
        fmt::print(" {} {:.3f} ms,", phase, seconds * 1e3);
    }
    fmt::print(" axpy {:.3f} ms\n", row["axpy_time"].get<double>() * 1e3);
  }

  const BenchOptions& o_;
  const TextTable& table_;
  nlohmann::json dense_;  // in fp32, without nodes
  double mpi_seconds_;
};

struct Results {
  nlohmann::json rows = nlohmann::json::array();
  bool wrong = false;
};

// NanPolicy::local: the ranks exchange no notes, so that only messages of the algorithm are counted.
MeasureOptions measure_options(const BenchOptions& o, const std::string& preset, Index n, Trace* trace,
                               const std::shared_ptr<GpuExchange>& exchange) {
  ReducerOptions reducer = o.method.reducer(preset);
  reducer.nan_policy = NanPolicy::local;
  reducer.device = o.compute.make_device();
  if (preset == "slots") reducer.exchange = exchange;
  reducer.trace = trace;
  return {.reducer = reducer,
          .group = o.method.ranks_per_node(),
          .n = n,
          .warm_up = preset == "dense" ? std::min(o.sparse_warm_up(), kShortWarmUp) : o.sparse_warm_up(),
          .iterations = o.iterations,
          .check = o.check,
          .tentative = o.tentative};
}

// All rows on the ranks of one world.
void run_on(Communicator& comm, const BenchOptions& o, Trace* trace, const TextTable& table, Results& results) {
  const std::shared_ptr<GpuExchange> exchange = o.compute.make_exchange(comm);
  for (const Index n : o.size.sizes()) {
    GradientStream stream(o.stream(n), comm.rank());
    BenchOptions without_rule = o;
    without_rule.method.residual.clear();
    MeasureOptions plain = measure_options(without_rule, "dense", n, trace, nullptr);
    plain.group = 1;
    const bool prints = comm.rank() == 0;
    StatusLine status(prints);
    status.show(fmt::format("  dense, P = {}, n = {}", comm.size(), n));
    const bool is_lossless = plain.reducer.allreduce.codec.value_or(Codec{}).lossless();
    plain.reducer.allreduce.codec.reset();  // the reference is in fp32
    const nlohmann::json dense = measure(comm, plain, stream);
    const RowPrinter printer(o, table, dense, measure_mpi_allreduce(comm, plain, stream));
    status.clear();
    if (prints) printer.print_references();
    for (const std::string& preset : o.method.names()) {
      const MeasureOptions options = measure_options(o, preset, n, trace, exchange);
      const bool is_plain = preset == "dense" && options.group == 1 && is_lossless;
      status.show(fmt::format("  {}, P = {}, n = {}", preset, comm.size(), n));
      const nlohmann::json row = is_plain ? dense : measure(comm, options, stream);
      status.clear();
      if (!prints) continue;
      results.rows.push_back(printer.print(row));
      results.wrong = results.wrong || row["wrong"] > 0;
    }
  }
}

int run_bench(const BenchOptions& o) {
  o.size.sizes();
  o.compute.check();
  require(o.compute.simd != "all", "--simd all: one level at a time, please");
  require(o.sparse_warm_up() >= 0, "-w ", o.sparse_warm_up(), ": the number of warm-up steps cannot be negative");
  require(o.iterations >= 1, "--iters ", o.iterations, ": at least one iteration is needed");
  require(!o.in_place || o.world.transport == "mpi", "--in-place: for --transport mpi only");
  FlightFiles flight(o.flight_folder);
  Worlds worlds(o.world, o.in_place);
  worlds.watch(&flight);
  const std::vector<int> ranks = o.world.sizes(worlds);
  o.method.check(ranks);
  GradientStream(o.stream(0), 0);  // refuses bad options
  check_writable(o.json_file);
  TraceFile trace(o.trace_file, worlds);
  const SimdLimit limit(o.compute.levels().front());
  const TextTable table = bench_table(worlds.has_processes());
  Results results;
  if (worlds.is_root()) {
    print_title(o);
    table.print_head();
  }
  for (const int P : ranks)
    worlds.run(P, [&](Station& station) { run_on(station.comm, o, trace.trace(), table, results); });
  trace.write(worlds, *std::max_element(ranks.begin(), ranks.end()));
  if (!worlds.is_root()) return 0;
  if (o.check) fmt::print("# wrong values: {}\n", results.wrong ? "FAILED" : "0 OK");
  write_json(o.json_file, {{"tool", "oktopk bench"},
                           {"version", OKTOPK_VERSION},
                           {"transport", o.world.transport},
                           {"in_place", o.in_place},
                           {"data", o.data},
                           {"shared", o.shared},
                           {"event", o.event},
                           {"warm_up", o.sparse_warm_up()},
                           {"iterations", o.iterations},
                           {"tentative", o.tentative},
                           {"simd", to_string(simd_level())},
                           {"threads", o.compute.threads},
                           {"options", o.method.json()},
                           {"rows", results.rows}});
  return results.wrong ? 1 : 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand(
      "bench", "times whole steps, counts what they move, checks them (-c); in the manner of nccl-tests");
  sub->group("Measure");
  auto o = std::make_shared<BenchOptions>();
  o->size.add_to(*sub);
  sub->add_option("-w,--warmup", o->warm_up,
                  "steps before the clock starts (default: 2/density, from 5 to 400, until residuals are stationary; "
                  "5 for dense)");
  sub->add_option("--iters", o->iterations, "timed steps");
  add_former(*sub, "-n", "--iters", o->iterations);
  add_refused(*sub, "--fresh", "steps are timed with error feedback, as training makes them");
  add_refused(*sub, "--spread", "these columns are gone; --trace FILE has the times of every rank");
  sub->add_flag("-c,--check", o->check, "compare one more step with the oracle; exit 1 if it is wrong");
  sub->add_flag("--tentative", o->tentative, "steps are proposed, agreed on and committed (docs/reliability.md)");
  sub->add_flag("--breakdown", o->breakdown,
                "below each row: median time in each phase of the step, and inside the communicator");
  add_json_to(*sub, o->json_file);
  TraceFile::add_option(*sub, o->trace_file);
  FlightFiles::add_option(*sub, o->flight_folder);
  o->world.add_to(*sub);
  sub->add_flag("--in-place", o->in_place, "mpi: without the copies that make a failed exchange safe");
  sub->add_option("--data", o->data, "gaussian, laplace, layered (oktopk list has all)");
  sub->add_option("--shared", o->shared, "share of the gradients' variance that is a signal common to all ranks");
  sub->add_option("--event", o->event, "none, jump (1,000 times larger from step 24 to 31), zero_first or rough");
  sub->add_option("--seed", o->seed, "of the generated gradients");
  o->compute.add_to(*sub, false);
  o->compute.add_device_to(*sub);
  o->compute.add_exchange_to(*sub);
  o->method.add_problem_to(*sub);
  o->method.add_to(*sub);
  sub->footer(
      "Every step has a new gradient; values that are not sent stay for later steps (error feedback).\n"
      "time: median over the ranks of each rank's median step.\n"
      "dense result: the step, and its update as n values. x axpy: time over that of an in-place axpy of n floats,\n"
      "which all ranks run at once, in turns with the steps. x dense, x mpi: how many times faster than the\n"
      "preset dense and than MPI_Allreduce (--transport mpi).\n"
      "msgs, wire: per step on the busiest rank, the larger of sent and received exchange by exchange.\n"
      "words/k: 4-byte words of wire per k, median over the steps; mean: with the rare refresh steps.\n"
      "predicted: the cost model's words/k. x bound: wire over 2k(P-1)/P words, the paper's lower bound for both\n"
      "phases; plain coordinates (an index and a value) need twice that. eff.bw: 4n bytes / time.\n"
      "#wrong: entries that differ from the oracle. With --group: msgs and wire count inside and outside of nodes.");
  sub->callback([&action, o] { action = [o] { return run_bench(*o); }; });
}

}  // namespace oktopk
