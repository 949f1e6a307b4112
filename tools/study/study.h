// SPDX-License-Identifier: Apache-2.0
// `oktopk study NAME`: experiments about the algorithms themselves, not about their speed. A study
// gets a task, runs it on the ranks and gives findings: tables for the terminal and the page, plots
// for the page, rows for JSON. To add one: its measurement (tested), <name>_study.cc, a row in
// study.cc, a section in docs/studies.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "oktopk/reduce/density.h"
#include "tools/report/page.h"
#include "tools/study/stream.h"
#include "tools/worlds.h"

namespace oktopk {

// What to run, checked.
struct StudyTask {
  Worlds& worlds;
  Index n = 0;
  std::vector<double> densities;
  std::vector<int> ranks;
  int steps = 0;
  std::uint64_t seed = 1;
  std::vector<std::string> data;

  SourceOptions source(const std::string& name) const { return {.data = name, .n = n, .steps = steps, .seed = seed}; }
};

struct Findings {
  std::vector<std::string> head;  // "# " lines: what was run
  std::vector<Table> tables;
  std::vector<std::string> notes;  // how to read them
  std::vector<std::string> plots;  // from to_svg()
  nlohmann::json rows = nlohmann::json::array();
};

struct Study {
  std::string_view name;
  std::string_view summary;
  std::string_view question;  // for the page
  std::string_view size, densities, ranks;
  int steps;
  std::string_view data;
  bool trains = false;          // knows the data `training`
  bool many_densities = false;  // takes a list
  Findings (*run)(const StudyTask& task);
};

Findings study_xi(const StudyTask& task);
Findings study_counts(const StudyTask& task);
Findings study_load(const StudyTask& task);
Findings study_fill_in(const StudyTask& task);
Findings study_mass(const StudyTask& task);

// Runs body(comm) on P ranks and returns what rank 0 got. Elsewhere than on rank 0's process, with
// MPI, a default value: nothing is printed there.
template <class Body>
auto on_ranks(Worlds& worlds, int P, Body body) {
  using Run = std::invoke_result_t<Body&, Communicator&>;
  Run first{};
  worlds.run(P, [&](Station& station) {
    Run run = body(station.comm);
    if (station.comm.rank() == 0) first = std::move(run);
  });
  return first;
}

}  // namespace oktopk
