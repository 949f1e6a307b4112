// SPDX-License-Identifier: Apache-2.0
// `oktopk kernels`: every kernel beside its limit, in one run: passes over n elements, sums and trims of entries,
// codings (tools/kernels). docs/performance.md has results.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/reduce/density.h"
#include "tools/commands.h"
#include "tools/kernels/kernel_bench.h"
#include "tools/options.h"
#include "tools/text.h"

namespace oktopk {
namespace {

struct KernelsOptions {
  SizeOptions size;
  ComputeOptions compute;
  std::string densities = "0.01";
  std::string data = "gaussian";
  std::string json_file;
  std::string data_file;
  KernelBench::Options bench;
  std::uint64_t seed = 1;
};

std::vector<InputInfo> chosen_inputs(const std::string& names) {
  std::vector<std::string> known;
  for (const InputInfo& info : inputs()) known.emplace_back(info.name);
  std::vector<InputInfo> chosen;
  for (const std::string& name : split_names(names, known)) {
    const Input kind = find_input(name);
    require(kind != Input::zero, "--data zero: there is nothing to select");
    for (const InputInfo& info : inputs())
      if (info.kind == kind) chosen.push_back(info);
  }
  return chosen;
}

constexpr const char* kLine =
    "{:<33} {:<7} {:<8} {:>10} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7} {:>6} {:>9} {:>7} {:>7}  {}\n";

void print_head(const KernelsOptions& o) {
  fmt::print("# oktopk {} kernels: {} thread{}, {} repetitions, kernel and limit in turns\n", OKTOPK_VERSION,
             o.compute.threads, o.compute.threads == 1 ? "" : "s", o.bench.repetitions);
  fmt::print(fmt::runtime(kLine), "# kernel", "simd", "data", "n", "k", "time", "min", "GB/s", "ns", "bits", "limit",
             "limit", "ratio", "of min", "reach");
  fmt::print(fmt::runtime(kLine), "#", "", "", "", "", "(ms)", "(ms)", "", "/entry", "/entry", "", "(ms)", "", "", "");
}

std::string number_or_dash(double value, const char* format) {
  return value > 0 ? fmt::format(fmt::runtime(format), value) : "-";
}

void print_row(const KernelRow& row) {
  fmt::print(fmt::runtime(kLine), row.kernel, to_string(row.simd), row.data, row.n, row.k,
             fmt::format("{:.4f}", row.times.kernel.median * 1e3), fmt::format("{:.4f}", row.times.kernel.least * 1e3),
             fmt::format("{:.2f}", row.bandwidth() / 1e9), number_or_dash(row.nanoseconds(), "{:.3f}"),
             number_or_dash(row.bits, "{:.3f}"), row.limit, number_or_dash(row.times.limit.median * 1e3, "{:.4f}"),
             number_or_dash(row.times.ratio(), "{:.3f}"), number_or_dash(row.times.least_ratio(), "{:.3f}"),
             row.verdict());
  std::fflush(stdout);
}

nlohmann::json to_json(const KernelRow& row) {
  nlohmann::json reach = nlohmann::json::array();
  for (const Reach& r : row.reach)
    reach.push_back(
        {{"unit", unit_of(r.measure)}, {"most", r.most}, {"value", row.value(r.measure)}, {"met", row.meets(r)}});
  return {{"kernel", row.kernel},
          {"simd", to_string(row.simd)},
          {"data", row.data},
          {"n", row.n},
          {"k", row.k},
          {"time", row.times.kernel.median},
          {"time_min", row.times.kernel.least},
          {"time_mad", row.times.kernel.deviation},
          {"bandwidth", row.bandwidth()},
          {"ns_per_entry", row.nanoseconds()},
          {"bits_per_entry", row.bits},
          {"limit", row.limit},
          {"limit_time", row.times.limit.median},
          {"limit_time_min", row.times.limit.least},
          {"ratio", row.times.ratio()},
          {"ratio_min", row.times.least_ratio()},
          {"reach", reach}};
}

// The values as they are, for programs that compare themselves on the same ones.
void write_data(const std::string& file, const Uninitialised<float>& x) {
  if (file.empty()) return;
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
  require(out.good(), "cannot write ", file);
}

int run_kernels(const KernelsOptions& o) {
  const auto sizes = o.size.sizes();
  const auto densities = parse_densities(o.densities, "--density");
  const auto data = chosen_inputs(o.data);
  o.compute.check();
  const auto levels = o.compute.levels();
  require(o.bench.repetitions >= 1, "-n ", o.bench.repetitions, ": at least one repetition is needed");
  require(o.data_file.empty() || sizes.size() * data.size() == 1,
          "--write-data: one size and one kind of data, please");
  check_writable(o.json_file);
  nlohmann::json rows = nlohmann::json::array();
  int noisy = 0;  // limits are the same work each time, so they show how busy the machine is
  print_head(o);
  KernelBench::Options options = o.bench;
  options.threads = o.compute.threads;
  for (const InputInfo& input : data)
    for (const Index n : sizes) {
      const KernelData values(input, n, o.seed);
      write_data(o.data_file, values.x);
      for (const double density : densities)
        for (const SimdLevel level : levels) {
          const SimdLimit limit(level);
          KernelBench(values, entries_at(density, n), options, [&](const KernelRow& row) {
            print_row(row);
            if (row.times.limit.deviation > 0.05 * row.times.limit.median) ++noisy;
            rows.push_back(to_json(row));
          }).run();
        }
    }
  if (noisy > 0)
    fmt::print("# {} of {} limits varied by more than 5%: other programs run, so trust 'of min' more than 'ratio'\n",
               noisy, rows.size());
  require(!rows.empty(), "--only ", o.bench.only, ": no kernel has that in its name");
  write_json(o.json_file, {{"tool", "oktopk kernels"},
                           {"version", OKTOPK_VERSION},
                           {"threads", o.compute.threads},
                           {"cores", std::thread::hardware_concurrency()},
                           {"repetitions", o.bench.repetitions},
                           {"rows", rows}});
  return 0;
}

}  // namespace

void add_kernels(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("kernels", "times every kernel beside what memory allows, in one run");
  auto o = std::make_shared<KernelsOptions>();
  o->size.begin = "16M";
  o->size.add_to(*sub);
  o->compute.add_to(*sub, true);
  sub->option_defaults()->always_capture_default();
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; several with commas");
  sub->add_option("--data", o->data, "one kind, several with commas, or all (oktopk list)");
  sub->add_option("-n,--iters", o->bench.repetitions, "timed repetitions");
  sub->add_option("--seed", o->seed, "of the generated values");
  sub->option_defaults()->always_capture_default(false);
  sub->add_option("--only", o->bench.only, "only kernels with this in their name");
  sub->add_flag("--baselines", o->bench.baselines, "also selection by the standard library");
  sub->add_option("--write-data", o->data_file, "write the values to this file, as 4-byte floats");
  sub->add_option("-J,--json", o->json_file, "also write the rows to this file");
  sub->footer(
      "Limits: read sums n floats, copy is memcpy of the bytes that the kernel takes in, axpy is an in-place y += a*x, "
      "in\n"
      "the widest vectors of this machine, on as many threads. Kernel and limit take turns.\n"
      "ratio: median time over the limit's median; of min: least time over the limit's least.\n"
      "reach: the number that the kernel should keep to (for n >= 16M, at 1% or less), and whether it does.\n"
      "reduce: P parts of k/P entries within n/P indices. Beyond 1M values, data repeats itself.");
  sub->callback([&action, o] { action = [o] { return run_kernels(*o); }; });
}

}  // namespace oktopk
