// SPDX-License-Identifier: Apache-2.0
// `oktopk tune`: measures the profile of the ranks and the network at hand, and shows the tuner's choices by it. With
// --links: how long a message between ranks 0 and 1 takes, one way and both ways at once, over any transport. Rank 0
// decides how many messages fit the budget.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "tools/choice.h"
#include "tools/commands.h"
#include "tools/statistics.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

constexpr std::uint64_t kLargestMessage = std::uint64_t{1} << 30;
constexpr double kMostMessages = 1'000'000;
constexpr int kBatches = 9;

struct TuneOptions {
  ChoiceFlags choice;
  SizeOptions size{.begin = "64K", .end = "256M", .factor = "4"};
  CalibrateOptions calibrate{.budget = 0.2};
  WorldOptions world;
  bool links = false;
  std::string bytes = "8,4K,64K,1M,16M";
  std::string for_ranks;
  std::string densities = "0.001,0.01,0.05";
  std::string profile_file;
  std::string json_file;

  std::vector<std::uint64_t> message_sizes() const {
    std::vector<std::uint64_t> list;
    for (const std::string& name : split_names(bytes, {})) list.push_back(parse_count(name, "--bytes"));
    for (const std::uint64_t each : list)
      require(each <= kLargestMessage, "--bytes ", bytes, ": a message has at most 1G bytes");
    return list;
  }
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

void check_budget(double budget) {
  require(budget > 0 && budget <= 3600, "--budget ", budget, ": it must be in (0, 3600]");
}

int run_tune(const TuneOptions& o) {
  const auto sizes = o.size.sizes();
  const auto densities = parse_densities(o.densities, "--density");
  ChoiceOptions options = o.choice.options();
  const CalibrateOptions& c = o.calibrate;
  check_budget(c.budget);
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

// The two ends of the wire, and what they send.
struct Wire {
  Communicator& comm;
  std::vector<std::byte> out, in;
  bool both_ways = false;

  int peer() const { return 1 - comm.rank(); }
  void send() { comm.exchange(std::array{Send{peer(), out}}, {}); }
  void receive() {
    std::array recv{Recv{peer(), in}};
    comm.exchange({}, recv);
  }
  void once() {
    if (both_ways) {
      std::array recv{Recv{peer(), in}};
      comm.exchange(std::array{Send{peer(), out}}, recv);
    } else if (comm.rank() == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }
  // Seconds of one message one way, or of two that cross: the mean of `count`. Single ones mean little, because a rank
  // that is ahead finds the next message there.
  double mean_of(int count) {
    Timer timer;
    for (int i = 0; i < count; ++i) once();
    return timer.lap() / count / (both_ways ? 1 : 2);
  }
};

// The median of the means of kBatches batches; of single ones if fewer fit the budget.
double measure_wire(Wire& wire, double budget) {
  barrier(wire.comm);
  wire.once();  // warms up
  const double once = wire.mean_of(1) * (wire.both_ways ? 1 : 2);
  int count = static_cast<int>(std::clamp(budget / once, 1.0, kMostMessages));
  broadcast(wire.comm, 0, std::as_writable_bytes(std::span(&count, 1)));
  std::vector<double> means;
  for (int i = 0; i < std::min(count, kBatches); ++i) means.push_back(wire.mean_of(std::max(1, count / kBatches)));
  return quantile(std::move(means), 0.5);
}

TextTable links_table() {
  return TextTable({{"bytes", "bytes", fixed(0), 10},
                    {"one way", "one_way", fixed(2, 1e6), 12, "us"},
                    {"both ways", "both_ways", fixed(2, 1e6), 12, "us"},
                    {"one way", "one_way_rate", fixed(3, 1e-9), 12, "GB/s"},
                    {"both ways", "both_ways_rate", fixed(3, 1e-9), 12, "GB/s"}});
}

nlohmann::json time_link(Communicator& comm, std::uint64_t bytes, double budget) {
  Wire wire{comm, std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  const auto seconds = [&](bool both_ways) {
    wire.both_ways = both_ways;
    return measure_wire(wire, budget);
  };
  const double one = seconds(false), both = seconds(true), size = static_cast<double>(bytes);
  return {{"bytes", bytes},
          {"one_way", one},
          {"both_ways", both},
          {"one_way_rate", size / one},
          {"both_ways_rate", size / both}};
}

int run_links(const TuneOptions& o) {
  const std::vector<std::uint64_t> sizes = o.message_sizes();
  check_budget(o.calibrate.budget);
  check_writable(o.json_file);
  Worlds worlds(o.world);
  require(o.world.ranks.empty() || o.world.ranks == "2", "--ranks ", o.world.ranks, ": --links times 2 ranks");
  const TextTable table = links_table();
  if (worlds.is_root()) table.print_head();
  nlohmann::json rows = nlohmann::json::array();
  worlds.run(2, [&](Station& station) {
    for (const std::uint64_t size : sizes) {
      const nlohmann::json row = time_link(station.comm, size, o.calibrate.budget);
      if (station.comm.rank() != 0) continue;
      table.print(row);
      rows.push_back(row);
    }
  });
  if (!worlds.is_root()) return 0;
  write_json(
      o.json_file,
      {{"tool", "oktopk tune --links"}, {"version", OKTOPK_VERSION}, {"transport", o.world.transport}, {"rows", rows}});
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto* sub =
      app.add_subcommand("tune", "measures the prices of network and processor, and shows the choices that follow");
  sub->group("Decide");
  auto o = std::make_shared<TuneOptions>();
  sub->add_flag("--links", o->links, "time messages between ranks 0 and 1 instead, one way and both ways at once");
  sub->add_option("--ranks", o->world.ranks, "number of ranks that measure (default: 4, or all processes)");
  o->world.add_transport_to(*sub);
  sub->add_option("--bytes", o->bytes, "sizes of the messages of --links, with commas");
  sub->add_option("--budget", o->calibrate.budget, "seconds to measure for, about; --links: for each size and way");
  add_json_to(*sub, o->json_file);
  sub->add_option("--ranks-per-host", o->calibrate.ranks_per_host,
                  "consecutive ranks that share a host: measured apart, and may sum densely first");
  sub->add_option("--for-ranks", o->for_ranks, "numbers of ranks to decide for, with commas (default: --ranks)");
  sub->add_option("--threads", o->calibrate.cpu.threads, "threads of each rank that share a pass over n elements");
  sub->add_option("--density", o->densities, "k / n, in (0, 1]; several with commas");
  o->size.add_to(*sub);
  o->choice.add_to(*sub);
  sub->add_option("-o,--output", o->profile_file, "write the profile here, for --profile of other subcommands");
  add_refused(*sub, "--profile", "a profile is read by this name, and written by -o FILE");
  sub->footer(
      "x dense: how many times faster than the dense allreduce, by the model (docs/tuning.md).\n"
      "Under mpirun with --transport mpi, the real network is measured.\n"
      "--links: medians of 9 batches. One way: half of a message and its answer. Both ways: two messages that cross.\n"
      "Example: oktopk run -n 2 -- oktopk tune --links --transport tcp");
  sub->callback([&action, o, sub] {
    for (const char* option : {"--ranks-per-host", "--for-ranks", "--threads", "--density", "--begin", "--end",
                               "--factor", "--coarsest", "--override", "--overlap", "--output"})
      require(!o->links || sub->count(option) == 0, option, ": not with --links, which makes no choice");
    require(o->links || sub->count("--bytes") == 0, "--bytes: with --links only");
    action = [o] { return o->links ? run_links(*o) : run_tune(*o); };
  });
}

}  // namespace oktopk
