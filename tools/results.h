// SPDX-License-Identifier: Apache-2.0
// Machine-readable results, and the options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

// UsageError when `file` is named and cannot be written: to know before a long run.
void check_writable(const std::string& file);

// Writes to `file` unless its name is empty. UsageError when it cannot be written.
void write_json(const std::string& file, const nlohmann::json& value);

// From -b to -e, times -f.
struct SizeOptions {
  std::string begin = "1M", end, factor = "2";

  void add_to(CLI::App& sub);
  std::vector<Index> sizes() const;  // checked
};

// How the kernels compute; changes times, never results.
struct ComputeOptions {
  std::string simd = "best";
  int threads = 1;

  // `many`: whether --simd all makes sense.
  void add_to(CLI::App& sub, bool many);
  // The levels to use, the slowest first. UsageError names what the machine lacks.
  std::vector<SimdLevel> levels() const;
  void check() const;
};

// Presets, codec and the rest of what a Reducer is made from.
struct MethodOptions {
  std::string presets = "all";
  std::string codec = "coo32+fp32";
  std::string skips = "halving";
  std::string selector;
  std::string residual;
  double density = 0.01;
  int tau = 64;
  int tau_prime = 32;
  std::string thresholds = "steered";
  std::string group = "1";
  std::string profile_file;  // preset auto; empty: measured before the first step
  std::string overrides;     // likewise: rules, or @FILE
  std::string coarsest = "bf16";

  void add_to(CLI::App& sub);
  std::vector<std::string> names() const;  // checked
  int ranks_per_node() const;              // checked; as NodeOptions::group, 1: no nodes
  // For one preset. What a preset cannot use (a residual rule that another one has) is left at its
  // own.
  ReducerOptions reducer(const std::string& preset) const;
  nlohmann::json json() const;
  // UsageError now, rather than in the middle of a run, when a preset cannot work with these
  // options on so many ranks.
  void check(const std::vector<int>& ranks) const;
};

}  // namespace oktopk
