// SPDX-License-Identifier: Apache-2.0
// The options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/base/simd.h"
#include "oktopk/reduce/reducer.h"
#include "tools/text.h"

namespace oktopk {

// From -b to -e, times -f.
struct SizeOptions {
  std::string begin = "1M", end, factor = "2";

  void add_to(CLI::App& sub);
  std::vector<Index> sizes() const;  // checked
};

// How and where the kernels compute; changes times, never results.
struct ComputeOptions {
  std::string simd = "best";
  int threads = 1;
  std::string device = "cpu";
  std::string exchange = "comm";

  // `many`: whether --simd all makes sense.
  void add_to(CLI::App& sub, bool many);
  void add_device_to(CLI::App& sub);
  void add_exchange_to(CLI::App& sub);
  // The levels to use, the slowest first. UsageError names a level that the machine lacks.
  std::vector<SimdLevel> levels() const;
  void check() const;
  // The GPU that --device names; empty: the CPU.
  std::optional<int> gpu() const;
  // A device for one rank.
  std::shared_ptr<const Device> make_device() const;
  // Null unless messages go from GPU to GPU. Collective.
  std::shared_ptr<GpuExchange> make_exchange(Communicator& comm) const;
};

// Presets, codec and the other options that a Reducer is made from.
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
  std::string overrides;     // preset auto: rules, or @FILE
  std::string coarsest = "bf16";

  // Without auto: no preset auto, and none of its options.
  void add_to(CLI::App& sub, bool with_auto = true);
  std::vector<std::string> names() const;  // checked
  int ranks_per_node() const;              // checked; as NodeOptions::group, 1: no nodes
  // For one preset of several: a residual rule that only others can use is left out. Options that the preset ignores
  // are in it; make_synchroniser() drops them.
  ReducerOptions reducer(const std::string& preset) const;
  nlohmann::json json() const;
  // UsageError now, rather than in the middle of a run, if a preset cannot work with these options on so many ranks.
  void check(const std::vector<int>& ranks) const;
};

Overrides parse_overrides(const std::string& text);  // rules, or @FILE with rules

}  // namespace oktopk
