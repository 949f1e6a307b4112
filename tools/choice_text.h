// SPDX-License-Identifier: Apache-2.0
// Profiles and candidates as `oktopk tune` and `oktopk explain` show them, and the options that
// both share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "oktopk/tune/choose.h"
#include "tools/crossover.h"

namespace oktopk {

// What a tuner may choose from.
struct ChoiceFlags {
  std::string coarsest = "bf16";
  std::string overrides;
  double overlap = 1;

  void add_to(CLI::App& sub);
  ChoiceOptions options() const;  // checked
};

// n, k = density * n (at least 1) and P, checked.
Problem make_problem(double n, double density, int P, double overlap);

void print_profile(const Profile& profile);

// Where a candidate's time goes, in seconds.
struct TimeParts {
  double network = 0;
  double compute = 0;  // entries and values that arrive, and the pass over n
  double other = 0;    // the groups' inside; refresh steps, shared among the steps they serve
};
TimeParts time_parts(const Candidate& candidate, const Profile& profile);

nlohmann::json to_json(const Candidate& candidate, const Problem& problem, const Profile& profile);

// Why the first candidate is the first, and where dense would be.
std::string explanation(const std::vector<Candidate>& candidates, const Problem& problem, const Profile& profile,
                        const ChoiceOptions& options, const Crossovers& crossovers);

}  // namespace oktopk
