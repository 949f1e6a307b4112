// SPDX-License-Identifier: Apache-2.0
// `oktopk tune`: measures the profile of the ranks and the network at hand, and shows the tuner's choices by it.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "tools/choice_text.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/status_line.h"
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

TextTable tune_table() {
  const auto density = [](const nlohmann::json& row) {
    return fmt::format("{:.3g}", row["k"].get<double>() / row["n"].get<double>());
  };
  const auto skips = [](const nlohmann::json& row) {
    return row["preset"] == "circulant" ? row["skips"].get<std::string>() : "-";
  };
  // dense has no indices.
  const auto codec = [](const nlohmann::json& row) {
    const auto name = row["codec"].get<std::string>();
    return row["preset"] == "dense" ? name.substr(name.find('+') + 1) : name;
  };
  return TextTable({{"P", "ranks", {}, 4},
                    {"n", "n", fixed(0), 10},
                    {"density", "", density, 8},
                    {"preset", "preset", {}, -10},
                    {"skips", "", skips, -22},
                    {"codec", "", codec, -18},
                    {"group", "group", {}, 6},
                    {"time (ms)", "seconds", fixed(3, 1e3), 10},
                    {"dense (ms)", "dense_seconds", fixed(3, 1e3), 10},
                    {"x dense", "", times_dense, 8}});
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
  Worlds worlds(o.world);
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
  StatusLine status(worlds.is_root());
  status.show(fmt::format("  measuring network and processor for about {} s", c.budget));
  const Profile profile = measure(worlds, P, c);
  status.clear();
  if (!worlds.is_root()) return 0;
  options.groups = profile.ranks_per_host > 1;
  print_profile(profile);
  write_json(o.profile_file, nlohmann::json::parse(to_json(profile)));
  const TextTable table = tune_table();
  table.print_head();
  nlohmann::json rows = nlohmann::json::array();
  for (const int ranks : for_ranks)
    for (const Index n : sizes)
      for (const double density : densities) {
        const Problem problem = make_problem(n, density, ranks, o.choice.overlap);
        const Candidate choice = rank_candidates(problem, profile, options).front();
        const double dense = best_of({.preset = "dense"}, problem, profile, options).seconds;
        rows.push_back(with_dense(to_json(choice, problem, profile), dense));
        table.print(rows.back());
      }
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
                  "consecutive ranks that share a host: measured apart, and may sum densely first");
  sub->add_option("--for-ranks", o->for_ranks, "numbers of ranks to decide for, with commas (default: --ranks)");
  sub->add_option("--budget", o->calibrate.budget, "seconds to measure for, about");
  sub->add_option("--threads", o->calibrate.cpu.threads, "threads of each rank that share a pass over n elements");
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; several with commas");
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
