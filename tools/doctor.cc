// SPDX-License-Identifier: Apache-2.0
// `oktopk doctor`: reads the dumps of the ranks' flight recorders and says what happened.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "tools/commands.h"
#include "tools/diagnosis.h"
#include "tools/text.h"

namespace oktopk {
namespace {

struct DoctorOptions {
  std::vector<std::string> paths;
  double stall = 5;
  std::string json_file;
};

std::string waits_for(const nlohmann::json& row) {
  const auto ranks = row["waits_for"].get<std::vector<int>>();
  return ranks.empty() ? std::string("nobody") : fmt::format("{}", fmt::join(ranks, ","));
}

TextTable rank_table() {
  return TextTable(
      {{"rank", "rank", {}, 5},
       {"host", "host", {}, -16},
       {"pid", "pid", {}, 8},
       {"step", "step", {}, 8},
       {"state", "state", {}, 10},
       {"for s", "seconds", fixed(1), 8},
       {"waits for", "", waits_for, 10},
       {" last operation", "last", [](const nlohmann::json& v) { return " " + v.get<std::string>(); }, -1}});
}

int run_doctor(const DoctorOptions& o) {
  require(o.stall >= 0, "--stall ", o.stall, ": it must not be negative");
  const Diagnosis diagnosis = diagnose(read_dumps(o.paths), o.stall);
  write_json(o.json_file, diagnosis.json());
  const TextTable table = rank_table();
  table.print_head();
  for (const nlohmann::json& row : diagnosis.ranks) table.print(row);
  for (const std::string& finding : diagnosis.findings) fmt::print("* {}\n", finding);
  if (diagnosis.is_fine) fmt::print("# nothing is wrong in these dumps\n");
  return diagnosis.is_fine ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto* sub = app.add_subcommand("doctor", "reads dumps of the ranks' last operations and says who waits for whom");
  sub->group("Check");
  auto o = std::make_shared<DoctorOptions>();
  sub->add_option("dumps", o->paths, "files oktopk-flight-RANK.json, or folders of them")->required();
  sub->add_option("--stall", o->stall, "seconds that an operation may run before it counts as a stall");
  add_json_to(*sub, o->json_file);
  sub->footer(
      "Dumps come from --flight DIR (on errors, and on SIGUSR1), from FlightRecorder::write() and, in Python, from\n"
      "oktopk.dump_flight(). Not all ranks need to have one. Exit 1 when something is wrong. Examples:\n"
      "  oktopk train --steps 100000 --flight dumps &   kill -USR1 $!   oktopk doctor dumps");
  sub->callback([&action, o] { action = [o] { return run_doctor(*o); }; });
}

}  // namespace oktopk
