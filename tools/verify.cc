// SPDX-License-Identifier: Apache-2.0
// `oktopk verify`: runs the laws (oktopk/laws) on given presets, ranks and sizes, and says which of them hold.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "oktopk/base/simd.h"
#include "oktopk/laws/laws.h"
#include "tools/commands.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

constexpr const char* kLaws[] = {"agreement", "truth", "mass",    "restore",  "honesty",
                                 "volume",    "calm",  "courage", "bad input"};

constexpr Index kVolumeN = 20000;  // so large that fixed bytes per message do not hide bytes that grow with k
constexpr int kVolumeSteps = 96;

struct VerifyOptions {
  MethodOptions method;
  ComputeOptions compute;
  WorldOptions world;
  std::string size;
  std::string data;
  std::string json_file;
  int steps = 8;
  bool without_faults = false;
  std::uint64_t seed = 1;
};

// The findings about one preset on P ranks, over all inputs and sizes.
struct Verdict {
  std::map<std::string, Finding> laws;
  int trials = 0;

  // Keeps the first finding that breaks the law, or else the first one with a detail.
  void add(Finding finding, const Trial& trial) {
    const auto input = std::ranges::find(inputs(), trial.input, &InputInfo::kind);
    if (!finding.holds) finding.detail = fmt::format("n = {}, data {}, {}", trial.n, input->name, finding.detail);
    Finding& kept = laws.try_emplace(finding.law, finding).first->second;
    if (kept.holds && (!finding.holds || kept.detail.empty())) kept = finding;
  }
  bool holds() const {
    return std::all_of(laws.begin(), laws.end(), [](const auto& law) { return law.second.holds; });
  }
};

std::vector<Index> sizes(const VerifyOptions& o, int P) {
  if (o.size.empty()) {
    std::vector<Index> defaults = {0, 1, 64, 2000};
    if (P > 2) defaults.insert(defaults.begin() + 2, static_cast<Index>(P - 1));
    return defaults;
  }
  const std::uint64_t n = parse_count(o.size, "-b");
  require(n >= 1 && n <= (1U << 24U), "-b ", o.size, ": the laws gather all data; use 1 <= n <= 16M");
  return {static_cast<Index>(n)};
}

std::vector<Input> data(const VerifyOptions& o) {
  if (!o.data.empty()) return {find_input(o.data)};
  return {Input::dyadic, Input::skewed, Input::tied, Input::equal, Input::zero, Input::lonely};
}

// Over all streams: the first one that breaks the law, or, where nothing is promised, the volumes of each.
Finding check_volumes(Station& station, const Trial& like) {
  Finding all{"volume", true, ""};
  for (const VolumeStream& stream : volume_streams()) {
    VolumeTrial trial{like.options, like.group, stream.spec, stream.slack, kVolumeSteps};
    trial.stream.n = kVolumeN;
    trial.stream.seed = like.seed;
    const Finding found = check_volume(station.comm, trial);
    if (found.detail.empty() || !all.holds) continue;
    const std::string told = fmt::format("stream {}: {}", stream.name, found.detail);
    all.detail = found.holds && !all.detail.empty() ? all.detail + "; " + told : told;
    all.holds = found.holds;
  }
  return all;
}

Verdict verify(Station& station, const VerifyOptions& o, const std::string& preset) {
  Verdict verdict;
  Trial trial{.options = o.method.reducer(preset), .steps = o.steps, .seed = o.seed};
  trial.options.device = o.compute.make_device();
  trial.group = o.method.ranks_per_node();
  const auto run = [&](const Finding& finding) { verdict.add(finding, trial); };
  for (const Index n : sizes(o, station.comm.size())) {
    trial.n = n;
    for (const Input input : data(o)) {
      trial.input = input;
      for (const Finding& finding : check_steps(station.comm, trial)) run(finding);
      ++verdict.trials;
    }
  }
  trial.input = data(o).front();
  run(check_restore(station.comm, trial));
  run(check_volumes(station, trial));
  run(check_calm(station.comm, trial));
  run(check_bad_input(station.comm, trial));
  if (!o.without_faults) run(check_courage(station.comm, station.make_doomed, trial));
  return verdict;
}

// A star: the law holds as far as it was tried, and the detail below names the rest.
std::string word_for(const nlohmann::json& finding) {
  if (!finding["holds"].get<bool>()) return "BROKEN";
  return finding["detail"] == "" ? "holds" : "holds*";
}

TextTable verdict_table() {
  std::vector<Column> columns = {{"preset", "preset", {}, -10}, {"P", "ranks", {}, 4}, {"trials", "trials", {}, 7}};
  for (const char* law : kLaws) {
    const auto word = [=](const nlohmann::json& row) {
      return row["laws"].contains(law) ? word_for(row["laws"][law]) : "not run";
    };
    columns.push_back({law, "", word, 10});
  }
  return TextTable(columns);
}

struct Verdicts {
  nlohmann::json rows = nlohmann::json::array();
  bool all_hold = true;
};

// All presets on the ranks of one world, at the SIMD level in use.
void run_on(Station& station, const VerifyOptions& o, Verdicts& results) {
  for (const std::string& preset : o.method.names()) {
    require(preset != "auto", "--preset auto: its steps are those of the preset that it chooses; verify that one");
    StatusLine status(station.comm.rank() == 0);
    status.show(fmt::format("  {}, P = {}", preset, station.comm.size()));
    const Verdict verdict = verify(station, o, preset);
    if (station.comm.rank() != 0) continue;
    status.clear();
    nlohmann::json row = {{"preset", preset},
                          {"ranks", station.comm.size()},
                          {"simd", to_string(simd_level())},
                          {"holds", verdict.holds()}};
    for (const auto& [law, finding] : verdict.laws)
      row["laws"][law] = {{"holds", finding.holds}, {"detail", finding.detail}};
    results.rows.push_back(row);
    row["trials"] = verdict.trials;
    verdict_table().print(row);
    for (const auto& [law, finding] : verdict.laws)
      if (!finding.detail.empty()) fmt::print("  {}: {}\n", law, finding.detail);
    results.all_hold = results.all_hold && verdict.holds();
  }
}

int run_verify(const VerifyOptions& o) {
  data(o);
  o.compute.check();
  Worlds worlds(o.world);
  const std::vector<int> ranks = o.world.sizes(worlds);
  o.method.check(ranks);
  check_writable(o.json_file);
  Verdicts results;
  if (worlds.is_root()) {
    fmt::print("# oktopk {} verify: {}, codec {}, skips {}, group {}, {} steps\n", OKTOPK_VERSION, o.world.transport,
               o.method.codec, o.method.skips, o.method.group, o.steps);
    verdict_table().print_head();
  }
  for (const SimdLevel level : o.compute.levels()) {
    const SimdLimit limit(level);
    if (worlds.is_root())
      fmt::print("# SIMD level {}, {} thread{} per rank\n", to_string(level), o.compute.threads,
                 o.compute.threads == 1 ? "" : "s");
    for (const int P : ranks) worlds.run(P, [&](Station& station) { run_on(station, o, results); });
  }
  if (!worlds.is_root()) return 0;
  fmt::print("# {}\n", results.all_hold ? "all laws hold" : "a law is BROKEN");
  write_json(o.json_file, {{"tool", "oktopk verify"},
                           {"version", OKTOPK_VERSION},
                           {"transport", o.world.transport},
                           {"options", o.method.json()},
                           {"rows", results.rows}});
  return results.all_hold ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("verify", "runs the laws and says which hold; exit 1 when one does not");
  sub->group("Check");
  auto o = std::make_shared<VerifyOptions>();
  o->method.tau = 4;
  o->method.tau_prime = 3;
  o->method.density = 0.05;
  o->world.add_to(*sub);
  sub->add_option("-b,--size", o->size, "n (default: 0, 1, P-1, 64 and 2000)");
  sub->add_option("--data", o->data, "one kind of data (default: all dyadic ones, where sums are exact)");
  sub->add_option("--steps", o->steps, "steps per trial");
  sub->add_option("--seed", o->seed, "of data, delays and faults");
  sub->add_flag("--without-faults", o->without_faults, "leave out law 6, which waits for timeouts");
  add_json_to(*sub, o->json_file);
  o->compute.add_to(*sub, true);
  o->compute.add_device_to(*sub);
  o->method.add_problem_to(*sub);
  o->method.add_to(*sub, /*with_auto=*/false);
  sub->footer(
      "The laws: agreement, truth, mass (also over a restart), honesty (also over a stream: volume), calm, courage,\n"
      "bad input (docs/laws.md).");
  sub->callback([&action, o] { action = [o] { return run_verify(*o); }; });
}

}  // namespace oktopk
