// SPDX-License-Identifier: Apache-2.0
// `oktopk-lab kernels`: every kernel beside its limit, in one run: passes over n elements, sums and trims of entries,
// codings; or the kernels of a GPU (lab/kernels). docs/performance.md has results.
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lab/commands.h"
#include "lab/kernels/gpu_bench.h"
#include "lab/kernels/kernel_bench.h"
#include "oktopk/base/error.h"
#include "oktopk/reduce/density.h"
#include "tools/options.h"
#include "tools/text.h"

namespace oktopk {
namespace {

Column::Format fixed_or_dash(int decimals, double scale = 1) {
  return [=](double value) { return value > 0 ? format_fixed(scale * value, decimals) : "-"; };
}

struct KernelsOptions {
  SizeOptions size;
  ComputeOptions compute;
  std::string densities = "0.01";
  std::string data = "gaussian";
  std::string json_file;
  std::string data_file;
  std::string ranks;  // empty: not given
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

// "1.10 x ok", "10.1 bits, 0.2 ns over"; empty where nothing is to be reached.
std::string verdict(const nlohmann::json& reach) {
  std::string text;
  bool is_met = true;
  for (const nlohmann::json& goal : reach) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", goal["most"].get<double>(), goal["unit"].get<std::string>());
    is_met = is_met && goal["met"].get<bool>();
  }
  return text.empty() ? text : text + (is_met ? " ok" : " over");
}

TextTable kernel_table() {
  const auto ms = fixed(4, 1e3);
  return TextTable({{"kernel", "kernel", {}, -31},
                    {"simd", "simd", {}, -7},
                    {"data", "data", {}, -8},
                    {"n", "n", fixed(0), 10},
                    {"k", "k", fixed(0), 8},
                    {"time", "time", ms, 9, "(ms)"},
                    {"min", "time_min", ms, 9, "(ms)"},
                    {"GB/s", "bandwidth", fixed(2, 1e-9), 8},
                    {"ns", "ns_per_entry", fixed_or_dash(3), 8, "/entry"},
                    {"bits", "bits_per_entry", fixed_or_dash(3), 7, "/entry"},
                    {"limit", "limit", {}, 6},
                    {"limit", "limit_time", fixed_or_dash(4, 1e3), 9, "(ms)"},
                    {"ratio", "ratio", fixed_or_dash(3), 7},
                    {"of min", "ratio_min", fixed_or_dash(3), 7},
                    {"reach", "reach", verdict, -20}});
}

// The values as they are, for programs that compare themselves on the same ones.
void write_data(const std::string& file, const Uninitialised<float>& x) {
  if (file.empty()) return;
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
  require(out.good(), "cannot write ", file);
}

// Prints the rows as they come, and keeps them.
class Rows {
 public:
  Rows() : table_(kernel_table()) { table_.print_head(); }

  void add(const nlohmann::json& row) {
    table_.print(row);
    // Limits are the same work each time, so they show how busy the machine is.
    if (row["limit_time_mad"] > 0.05 * row["limit_time"].get<double>()) ++noisy_;
    rows_.push_back(row);
  }
  // `about`: the fields beside the rows.
  void end(const KernelsOptions& o, nlohmann::json about) const {
    if (noisy_ > 0)
      fmt::print("# {} of {} limits varied by more than 5%: other programs run, so trust 'of min' more than 'ratio'\n",
                 noisy_, rows_.size());
    require(!rows_.empty(), "--only ", o.bench.only, ": no kernel has that in its name");
    about.update({{"tool", "oktopk-lab kernels"},
                  {"version", OKTOPK_VERSION},
                  {"repetitions", o.bench.repetitions},
                  {"rows", rows_}});
    write_json(o.json_file, about);
  }

 private:
  TextTable table_;
  nlohmann::json rows_ = nlohmann::json::array();
  int noisy_ = 0;
};

void run_on_cpu(const KernelsOptions& o, const std::vector<InputInfo>& data, const std::vector<double>& densities) {
  const auto sizes = o.size.sizes();
  const auto levels = o.compute.levels();
  require(o.ranks.empty(), "--ranks ", o.ranks, ": with --device cuda only");
  require(o.data_file.empty() || sizes.size() * data.size() == 1,
          "--write-data: one size and one kind of data, please");
  fmt::print("# oktopk {} kernels: {} thread{}, {} repetitions, kernel and limit in turns\n", OKTOPK_VERSION,
             o.compute.threads, o.compute.threads == 1 ? "" : "s", o.bench.repetitions);
  Rows rows;
  KernelBench::Options options = o.bench;
  options.threads = o.compute.threads;
  for (const InputInfo& input : data)
    for (const Index n : sizes) {
      const KernelData values(input, n, o.seed);
      write_data(o.data_file, values.x);
      for (const double density : densities)
        for (const SimdLevel level : levels) {
          const SimdLimit limit(level);
          KernelBench(values, entries_at(density, n), options, [&](const nlohmann::json& row) { rows.add(row); }).run();
        }
    }
  rows.end(o, {{"threads", o.compute.threads}, {"cores", std::thread::hardware_concurrency()}});
}

void run_on_gpu(const KernelsOptions& o, const std::vector<InputInfo>& data, const std::vector<double>& densities) {
  const auto sizes = o.size.sizes();
  const GpuBench::Options options{.repetitions = o.bench.repetitions,
                                  .ranks = parse_ranks(o.ranks.empty() ? "1" : o.ranks, "--ranks"),
                                  .only = o.bench.only};
  require(o.compute.simd == "best" && o.compute.threads == 1 && !o.bench.baselines && o.data_file.empty(),
          "--simd, --threads, --baselines and --write-data: with --device cpu only");
  const TimedGpu gpu(*o.compute.gpu());
  fmt::print("# oktopk {} kernels: {}, {} repetitions, kernel and limit in turns\n", OKTOPK_VERSION, gpu.name(),
             o.bench.repetitions);
  Rows rows;
  for (const InputInfo& input : data)
    for (const Index n : sizes) {
      const GpuData values(gpu, input, n, o.seed);
      for (const double density : densities)
        GpuBench(gpu, values, entries_at(density, n), options, [&](const nlohmann::json& row) { rows.add(row); }).run();
    }
  rows.end(o, {{"device", gpu.name()}});
}

int run_kernels(const KernelsOptions& o) {
  const auto data = chosen_inputs(o.data);
  const auto densities = parse_densities(o.densities, "--density");
  o.compute.check();
  require(o.bench.repetitions >= 1, "--iters ", o.bench.repetitions, ": at least one repetition is needed");
  check_writable(o.json_file);
  if (o.compute.gpu())
    run_on_gpu(o, data, densities);
  else
    run_on_cpu(o, data, densities);
  return 0;
}

}  // namespace

void add_kernels(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("kernels", "times every kernel beside what memory allows, in one run");
  auto o = std::make_shared<KernelsOptions>();
  o->size.begin = "16M";
  o->size.add_to(*sub);
  o->compute.add_to(*sub, true);
  sub->add_option("--device", o->compute.device, "whose kernels: cpu, cuda or cuda:ORDINAL");
  sub->add_option("--ranks", o->ranks, "cuda: numbers of ranks of preset slots, with commas (default: 1)");
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; several with commas");
  sub->add_option("--data", o->data, "one kind, several with commas, or all (oktopk list)");
  sub->add_option("--iters", o->bench.repetitions, "timed repetitions");
  add_former(*sub, "-n", "--iters", o->bench.repetitions);
  sub->add_option("--seed", o->seed, "of the generated values");
  sub->add_option("--only", o->bench.only, "only kernels with this in their name");
  sub->add_flag("--baselines", o->bench.baselines, "also selection by the standard library");
  sub->add_option("--write-data", o->data_file, "write the values to this file, as 4-byte floats");
  add_json_to(*sub, o->json_file);
  sub->footer(
      "Limits: read sums n floats, copy is memcpy of the bytes that the kernel takes in, axpy is an in-place y += a*x, "
      "in\n"
      "the widest vectors of this machine, on as many threads. Kernel and limit take turns.\n"
      "ratio: median time over the limit's median; of min: least time over the limit's least.\n"
      "reach: the number that the kernel should keep to (for n >= 16M, at 1% or less), and whether it does.\n"
      "reduce: P parts of k/P entries within n/P indices. Beyond 1M values, data repeats itself.\n"
      "On a GPU: times of the GPU's clock around the kernels of a verb, each from cold caches and with another "
      "gradient.\n"
      "copy and set are the driver's; slots: P ranks in this process, the mean of their times; sum: of its three "
      "limits.");
  sub->callback([&action, o] { action = [o] { return run_kernels(*o); }; });
}

}  // namespace oktopk
