// SPDX-License-Identifier: Apache-2.0
// The presets: every published system, and ours, as a row of a table: a selector, an exchange and a
// residual rule. A new algorithm is a file, a factory and a row here; laws, bench and docs pick it
// up.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/select/selector.h"

namespace oktopk {

struct Preset {
  std::string_view name;
  std::string_view summary;
  SelectorKind selector;
  std::span<const ResidualKind> residuals;  // those that make sense; the first is the default
  std::unique_ptr<Allreduce> (*make)(const AllreduceOptions& options);
  std::span<const ResidualKind> losing = {};  // of those: published rules that lose mass

  bool takes(ResidualKind rule) const;
  // With a rule that it takes: nothing that a rank brings is ever lost (docs/laws.md, law 3).
  bool conserves_mass(ResidualKind rule) const;
};

std::span<const Preset> presets();

// UsageError lists the names that exist.
const Preset& find_preset(std::string_view name);

// options.residual none: the preset's own. UsageError when the preset cannot work with the rule
// asked for.
std::unique_ptr<Allreduce> make_allreduce(const Preset& preset, AllreduceOptions options);

// The same options with the preset's own residual rule where theirs cannot work with the preset or
// would lose mass: for presets that nobody asked for by name.
AllreduceOptions fitting(const Preset& preset, AllreduceOptions options);

// The selector that goes with the options: oktopk's reused thresholds are Ok-Topk's own, and with
// the rule steered a controlled threshold takes their place.
SelectorKind default_selector(const Preset& preset, const AllreduceOptions& options);
// The part of the options that this selector needs.
SelectorOptions selector_options(const AllreduceOptions& options, int P);

std::string_view to_string(ThresholdRule rule);
ThresholdRule find_threshold_rule(std::string_view name);

std::string_view to_string(ResidualKind kind);
ResidualKind find_residual(std::string_view name);

}  // namespace oktopk
