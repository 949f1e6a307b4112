// SPDX-License-Identifier: Apache-2.0
// Profiles and candidates as `oktopk tune` and `oktopk explain` show them, and the options that both share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/tune/candidates.h"

namespace oktopk {

// --coarsest, --override and --overlap: limits of the tuner's choice.
struct ChoiceFlags {
  std::string coarsest = "bf16";
  std::string overrides;
  double overlap = 1;

  void add_to(CLI::App& sub);
  ChoiceOptions options() const;  // checked
};

// n, k = density * n (at least 1) and P, checked.
Problem make_problem(double n, double density, int P, double overlap);

std::string format_bandwidth(double beta);
void print_profile(const Profile& profile);

// The parts of a candidate's time, in seconds.
struct TimeParts {
  double network = 0;
  double compute = 0;  // entries and values that arrive, and the pass over n
  double other = 0;    // inside groups; refresh steps, shared among the steps that they serve
};
TimeParts time_parts(const Candidate& candidate, const Profile& profile);

nlohmann::json to_json(const Candidate& candidate, const Problem& problem, const Profile& profile);

}  // namespace oktopk
