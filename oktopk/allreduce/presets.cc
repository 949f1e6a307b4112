// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/presets.h"

#include <algorithm>
#include <array>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

constexpr std::array kNone = {ResidualKind::none};
constexpr std::array kCleared = {ResidualKind::all_sent_cleared};
constexpr std::array kSender = {ResidualKind::sender_keeps};
constexpr std::array kHolder = {ResidualKind::holder_keeps};
constexpr std::array kHolderOrSender = {ResidualKind::holder_keeps, ResidualKind::sender_keeps};
constexpr std::array kOwner = {ResidualKind::owner_memory};
constexpr std::array kOwnerOrSender = {ResidualKind::owner_memory, ResidualKind::sender_keeps};

constexpr std::array<Preset, 10> kPresets = {{
    {"dense", "all n values, fp32 or bf16: Rabenseifner, or a ring for long vectors", "exact", kNone, make_dense},
    {"topka", "allgather of the selections, union applied", "exact", kCleared, make_topka},
    {"gaussiank", "topka with thresholds from a Gaussian fit", "gaussian", kCleared, make_gaussiank},
    {"topkdsa", "SparCML: split and reduce, allgather sparse or dense", "exact", kCleared, make_topkdsa},
    {"gtopk", "tree merge that keeps k, then broadcast", "exact", kHolderOrSender, make_gtopk, kSender},
    {"topka2a", "alltoall of equal regions, dense allgather", "quota", kCleared, make_topka2a},
    {"oktopk", "Ok-Topk, Algorithm 1: balanced split, reused thresholds, O(k) words", "reused", kSender, make_oktopk},
    {"spardl", "SparDL: log-step reduce-scatter, k/P kept per block", "quota", kHolder, make_spardl},
    {"circulant", "ours: any skip list, steered thresholds, owner memory", "controlled", kOwnerOrSender,
     make_circulant},
    {"slots", "ours: messages of one size, which a GPU makes without its host", "integer", kOwner, make_slots},
}};

constexpr EnumNames<ThresholdRule, 3> kThresholdRules("threshold rule", "paper", "published", "steered");

}  // namespace

bool Preset::takes(ResidualKind rule) const {
  return std::find(residuals.begin(), residuals.end(), rule) != residuals.end();
}

bool Preset::conserves_mass(ResidualKind rule) const {
  return takes(rule) && std::find(losing.begin(), losing.end(), rule) == losing.end();
}

std::span<const Preset> presets() { return kPresets; }

const Preset& find_preset(std::string_view name) { return find_row(kPresets, "preset", name); }

std::unique_ptr<Allreduce> make_allreduce(const Preset& preset, AllreduceOptions options) {
  if (options.residual == ResidualKind::none) options.residual = preset.residuals.front();
  std::string allowed;
  for (const ResidualKind kind : preset.residuals)
    allowed += (allowed.empty() ? "" : ", ") + std::string(to_string(kind));
  require(preset.takes(options.residual), "preset ", preset.name, " cannot work with residual rule ",
          to_string(options.residual), "; it takes: ", allowed);
  const Codec codec = options.codec.value_or(Codec{});
  require(codec.index != IndexCoding::all, "codec ", to_string(codec), ": index coding all is for dense blocks only");
  return preset.make(options);
}

AllreduceOptions fitting(const Preset& preset, AllreduceOptions options) {
  if (!preset.conserves_mass(options.residual)) options.residual = preset.residuals.front();
  return options;
}

std::string_view default_selector(const Preset& preset, const AllreduceOptions& options) {
  const bool is_steered = options.thresholds == ThresholdRule::steered;
  return preset.selector == "reused" && is_steered ? "controlled" : preset.selector;
}

SelectorOptions selector_options(const AllreduceOptions& options, int P) {
  return {.tau_prime = options.tau_prime, .follows_counts = options.thresholds == ThresholdRule::published, .P = P};
}

std::string_view to_string(ThresholdRule rule) { return kThresholdRules[rule]; }

ThresholdRule find_threshold_rule(std::string_view name) { return kThresholdRules.find(name); }

Outcome sparse_allreduce(Communicator& comm, CooView selection, Index n, std::size_t k, const std::string& preset,
                         AllreduceOptions options) {
  const Preset& row = find_preset(preset);
  const bool remembers_always = row.residuals.back() == ResidualKind::owner_memory;
  require(options.residual != ResidualKind::owner_memory && !remembers_always, "sparse_allreduce: preset ", preset,
          " with owner memory needs a Reducer, which keeps it between steps");
  if (options.residual == ResidualKind::none && row.residuals.front() == ResidualKind::owner_memory)
    options.residual = ResidualKind::sender_keeps;
  const auto allreduce = make_allreduce(row, options);
  require(!allreduce->is_dense(), "sparse_allreduce: preset ", preset, " sends all n values");
  const auto device = make_cpu_device();
  Outcome out;
  allreduce->run(comm, *device, {.selection = selection}, n, k, out);
  return out;
}

}  // namespace oktopk
