// SPDX-License-Identifier: Apache-2.0
// The simulated program: what every rank runs under SimGrid's smpirun.
//   oktopk-simulated SPEC ROWS    SPEC: tools/simulate/spec.h as JSON; rank 0 appends to ROWS, one
//                                 line of JSON per row.
// All ranks are in one process and run one at a time; nothing here or in the library is a global
// that a rank changes, so they need no copies of the program.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/mpi.h"
#include "tools/simulate/simulator.h"

namespace oktopk {
namespace {

SimulationSpec read_spec(const char* file) {
  std::ifstream in(file);
  require(in.good(), "cannot read ", file);
  return spec_from_json(nlohmann::json::parse(in));
}

// For tests of whoever watches the simulator.
void provoke(Communicator& comm, const std::string& what) {
  if (what == "deadlock" && comm.rank() == 0) {
    std::array<std::byte, 1> nothing{};
    Recv recv{comm.size() - 1, nothing, 0};
    comm.exchange({}, {&recv, 1});
  }
  if (what == "abort" && comm.rank() == 0) abort_simulation();
  if (what == "error" && comm.rank() == 0) fail<CommError>("provoked");
}

void run(const char* spec_file, const char* rows_file) {
  const auto world = make_mpi_world({.blocking = true});
  const SimulationSpec spec = read_spec(spec_file);
  require(world->size() == spec.P, "started with ", world->size(), " ranks instead of ", spec.P);
  provoke(*world, spec.provoke);
  const SimulatedClock clock = simulator_clock();
  for (const SimulatedProblem& problem : spec.problems) {
    std::vector<SimulatedRow> rows;
    for (std::size_t i = 0; i < spec.presets.size(); ++i) {
      // auto often takes what another row ran already.
      const auto same = static_cast<std::size_t>(
          std::find(problem.methods.begin(), problem.methods.end(), problem.methods[i]) - problem.methods.begin());
      rows.push_back(same < i ? rows[same]
                              : simulate_row(*world, spec, problem, spec.presets[i], problem.methods[i], clock));
      rows.back().preset = spec.presets[i];
      const SimulatedRow& row = rows.back();
      barrier(*world);
      if (world->rank() != 0) continue;
      release_free_memory();
      std::ofstream(rows_file, std::ios::app) << to_json(row).dump() << std::endl;
    }
  }
}

}  // namespace
}  // namespace oktopk

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: smpirun ... oktopk-simulated SPEC ROWS\n");
    return 2;
  }
  const oktopk::MpiSession session(oktopk::MpiThreads::first);
  try {
    oktopk::run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "oktopk-simulated: CRITICAL: {}\n", error.what());
    oktopk::abort_simulation();
    return 1;
  }
}
