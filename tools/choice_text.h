// SPDX-License-Identifier: Apache-2.0
// Problems, profiles and candidates as predict, tune and explain show them, and the options that they share.
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
Problem make_problem(const std::string& n, double density, int P, double overlap);

// For columns of tables: the row with the time of dense, and how many times faster than dense its time is.
nlohmann::json with_dense(nlohmann::json row, double dense_seconds);
std::string times_dense(const nlohmann::json& row);

std::string format_bandwidth(double beta);
void print_profile(const Profile& profile);

// Its time in seconds has three parts: network; compute (entries and values that arrive, and the pass over n); other
// (inside groups, and refresh steps, shared among the steps that they serve).
nlohmann::json to_json(const Candidate& candidate, const Problem& problem, const Profile& profile);

}  // namespace oktopk
