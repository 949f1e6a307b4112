// SPDX-License-Identifier: Apache-2.0
// `oktopk ping`: how long a message between ranks 0 and 1 takes, one way and both ways at once. Any transport;
// bench/transports.py runs it beside Open MPI and Gloo. Rank 0 decides how many messages fit the budget.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "tools/commands.h"
#include "tools/statistics.h"
#include "tools/text.h"
#include "tools/worlds.h"

namespace oktopk {
namespace {

using PingClock = std::chrono::steady_clock;
constexpr std::uint64_t kLargestPing = std::uint64_t{1} << 30;
constexpr double kMostPings = 1'000'000;
constexpr int kBatches = 9;

struct PingOptions {
  WorldOptions world;
  std::string sizes = "8,4K,64K,1M,16M";
  double budget = 0.2;
  std::string json_file;

  std::vector<std::uint64_t> bytes() const {
    std::vector<std::uint64_t> list;
    for (const std::string& name : split_names(sizes, {})) list.push_back(parse_count(name));
    for (const std::uint64_t size : list)
      require(size <= kLargestPing, "--bytes ", sizes, ": a message has at most 1G bytes");
    require(!list.empty(), "--bytes: no size is given");
    return list;
  }
};

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
    const auto begin = PingClock::now();
    for (int i = 0; i < count; ++i) once();
    return std::chrono::duration<double>(PingClock::now() - begin).count() / count / (both_ways ? 1 : 2);
  }
};

// The median of the means of kBatches batches; of single ones if fewer fit the budget.
double measure_wire(Wire& wire, double budget) {
  barrier(wire.comm);
  wire.once();  // warms up
  const double once = wire.mean_of(1) * (wire.both_ways ? 1 : 2);
  int count = static_cast<int>(std::clamp(budget / once, 1.0, kMostPings));
  broadcast(wire.comm, 0, std::as_writable_bytes(std::span(&count, 1)));
  std::vector<double> means;
  for (int i = 0; i < std::min(count, kBatches); ++i) means.push_back(wire.mean_of(std::max(1, count / kBatches)));
  return quantile(std::move(means), 0.5);
}

TextTable ping_table() {
  return TextTable({{"bytes", "bytes", fixed(0), 10},
                    {"one way", "one_way", fixed(2, 1e6), 12, "us"},
                    {"both ways", "both_ways", fixed(2, 1e6), 12, "us"},
                    {"one way", "one_way_rate", fixed(3, 1e-9), 12, "GB/s"},
                    {"both ways", "both_ways_rate", fixed(3, 1e-9), 12, "GB/s"}});
}

nlohmann::json ping(Communicator& comm, std::uint64_t bytes, double budget) {
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

int run_ping(const PingOptions& o) {
  const std::vector<std::uint64_t> sizes = o.bytes();
  require(o.budget > 0 && o.budget <= 60, "--budget ", o.budget, ": it must be in (0, 60]");
  check_writable(o.json_file);
  Worlds worlds(o.world);
  require(o.world.ranks.empty() || o.world.ranks == "2", "--ranks ", o.world.ranks, ": a ping is between 2 ranks");
  const TextTable table = ping_table();
  if (worlds.is_root()) table.print_head();
  nlohmann::json rows = nlohmann::json::array();
  worlds.run(2, [&](Station& station) {
    for (const std::uint64_t size : sizes) {
      const nlohmann::json row = ping(station.comm, size, o.budget);
      if (station.comm.rank() != 0) continue;
      table.print(row);
      rows.push_back(row);
    }
  });
  if (!worlds.is_root()) return 0;
  write_json(o.json_file,
             {{"tool", "oktopk ping"}, {"version", OKTOPK_VERSION}, {"transport", o.world.transport}, {"rows", rows}});
  return 0;
}

}  // namespace

void add_ping(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("ping", "times messages between ranks 0 and 1, one way and both ways at once");
  auto o = std::make_shared<PingOptions>();
  o->world.add_to(*sub);
  sub->add_option("--bytes", o->sizes, "sizes of the messages, with commas");
  sub->add_option("--budget", o->budget, "seconds to measure each size and way for, about");
  sub->add_option("-J,--json", o->json_file, "also write the table to this file");
  sub->footer(
      "Medians of 9 batches. One way: half of a message and its answer. Both ways: two messages that cross.\n"
      "Example: oktopk run -n 2 -- oktopk ping --transport tcp");
  sub->callback([&action, o] { action = [o] { return run_ping(*o); }; });
}

}  // namespace oktopk
