// SPDX-License-Identifier: Apache-2.0
// The presets: every published system, and ours, as a row of a table: a selector, an exchange and the residual rules
// that fit it. A new algorithm is a file, a factory and a row in presets.cc; laws, bench and docs find it there.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "oktopk/allreduce/options.h"

namespace oktopk {

class Allreduce;  // allreduce.h, private

struct Preset {
  std::string_view name;
  std::string_view summary;
  SelectorKind selector;
  std::span<const ResidualKind> residuals;  // the rules that fit; the first is the default
  std::unique_ptr<Allreduce> (*make)(const AllreduceOptions& options);
  std::span<const ResidualKind> losing = {};  // published rules among `residuals` that lose mass

  bool takes(ResidualKind rule) const;
  // True when the preset takes the rule and then never loses anything that a rank brings (docs/laws.md, law 3).
  bool conserves_mass(ResidualKind rule) const;
};

std::span<const Preset> presets();

// Throws UsageError that lists the names that exist.
const Preset& find_preset(std::string_view name);

// The same options, with the preset's default residual rule where the given one does not fit or would lose mass. For
// presets that nobody asked for by name.
AllreduceOptions fitting(const Preset& preset, AllreduceOptions options);

// The preset's selector. For oktopk with ThresholdRule::steered a controlled threshold replaces the reused one.
SelectorKind default_selector(const Preset& preset, const AllreduceOptions& options);

}  // namespace oktopk
