// SPDX-License-Identifier: Apache-2.0
// `oktopk tune`: measures the profile of the ranks and the network at hand, and shows the tuner's choices by it.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "tools/choice_text.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

struct TuneOptions {
  ChoiceFlags choice;
  SizeOptions size{.begin = "64K", .end = "256M", .factor = "4"};
  CalibrateOptions calibrate;
  WorldOptions world;
  std::string for_ranks;
  std::string densities = "0.001,0.01,0.05";
  std::string profile_file;
  std::string json_file;
};

const std::vector<TextTable::Column> kColumns = {{"P", 4},           {"n", 10},      {"density", 8}, {"preset", -10},
                                                 {"skips", -22},     {"codec", -18}, {"group", 6},   {"time (ms)", 10},
                                                 {"dense (ms)", 10}, {"x dense", 8}};

nlohmann::json decide(const Problem& problem, const Profile& profile, const ChoiceOptions& options) {
  const Candidate c = rank_candidates(problem, profile, options).front();
  const double dense = best_of({.preset = "dense"}, problem, profile, options).seconds;
  const bool is_dense = c.method.preset == "dense";
  const auto coding = value_codings()[static_cast<std::size_t>(c.method.codec.value)].name;
  TextTable(kColumns).print({std::to_string(problem.P), format_fixed(problem.n, 0),
                             fmt::format("{:.3g}", problem.k / problem.n), c.method.preset,
                             c.method.preset == "circulant" ? c.method.skips : "-",
                             is_dense ? std::string(coding) : to_string(c.method.codec), std::to_string(c.method.group),
                             format_fixed(c.seconds * 1e3, 3), format_fixed(dense * 1e3, 3),
                             format_fixed(c.seconds > 0 ? dense / c.seconds : 1.0, 2)});
  nlohmann::json row = to_json(c, problem, profile);
  row["dense_seconds"] = dense;
  return row;
}

Profile measure(Worlds& worlds, int P, const CalibrateOptions& options) {
  Profile profile;
  worlds.run(P, [&](Station& station) {
    const Profile measured = calibrate(station.comm, options);
    if (station.comm.rank() == 0) profile = measured;
  });
  return profile;
}

int run_tune(const TuneOptions& o) {
  const auto sizes = o.size.sizes();
  const auto densities = parse_densities(o.densities, "--density");
  ChoiceOptions options = o.choice.options();
  const CalibrateOptions& c = o.calibrate;
  require(c.budget > 0 && c.budget <= 3600, "--budget ", c.budget, ": it must be in (0, 3600]");
  require(c.ranks_per_host >= 1, "--ranks-per-host ", c.ranks_per_host, ": it must be at least 1");
  require(c.cpu.threads >= 1 && c.cpu.threads <= 1024, "--threads ", c.cpu.threads, ": it must be in 1..1024");
  Worlds worlds(o.world.transport);
  const std::vector<int> ranks_measured = o.world.sizes(worlds);
  require(ranks_measured.size() == 1, "--ranks ", o.world.ranks,
          ": one number of ranks, please; --for-ranks takes several");
  const int P = ranks_measured.front();
  const std::vector<int> for_ranks =
      o.for_ranks.empty() ? std::vector<int>{P} : parse_ranks(o.for_ranks, "--for-ranks");
  require(P > 1 || o.for_ranks.empty(), "--for-ranks ", o.for_ranks,
          ": one rank alone measures no network to predict others by");
  check_writable(o.profile_file);
  check_writable(o.json_file);
  const Profile profile = measure(worlds, P, c);
  if (!worlds.is_root()) return 0;
  options.groups = profile.ranks_per_host > 1;
  print_profile(profile);
  write_json(o.profile_file, nlohmann::json::parse(to_json(profile)));
  TextTable(kColumns).print_head();
  nlohmann::json rows = nlohmann::json::array();
  for (const int ranks : for_ranks)
    for (const Index n : sizes)
      for (const double density : densities)
        rows.push_back(decide(make_problem(n, density, ranks, o.choice.overlap), profile, options));
  write_json(o.json_file, {{"tool", "oktopk tune"},
                           {"version", OKTOPK_VERSION},
                           {"transport", o.world.transport},
                           {"ranks", P},
                           {"profile", nlohmann::json::parse(to_json(profile))},
                           {"overrides", to_string(options.overrides)},
                           {"rows", rows}});
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto* sub =
      app.add_subcommand("tune", "measures the prices of network and processor, and shows the choices that follow");
  auto o = std::make_shared<TuneOptions>();
  o->world.add_to(*sub);
  sub->add_option("--ranks-per-host", o->calibrate.ranks_per_host,
                  "consecutive ranks that share a host: measured apart, and may sum densely first")
      ->capture_default_str();
  sub->add_option("--for-ranks", o->for_ranks, "numbers of ranks to decide for, with commas (default: --ranks)");
  sub->add_option("--budget", o->calibrate.budget, "seconds to measure for, about")->capture_default_str();
  sub->add_option("--threads", o->calibrate.cpu.threads, "threads of each rank that share a pass over n elements")
      ->capture_default_str();
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; several with commas")->capture_default_str();
  o->size.add_to(*sub);
  o->choice.add_to(*sub);
  sub->add_option("-o,--profile", o->profile_file, "write the profile here, for oktopk explain --profile");
  sub->add_option("-J,--json", o->json_file, "also write profile and table to this file");
  sub->footer(
      "x dense: how many times faster than the dense allreduce, by the model (docs/tuning.md).\n"
      "Under mpirun with --transport mpi, the real network is measured.");
  sub->callback([&action, o] { action = [o] { return run_tune(*o); }; });
}

}  // namespace oktopk
