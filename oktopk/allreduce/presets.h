// SPDX-License-Identifier: Apache-2.0
// The public face of this folder: the options of an allreduce, the presets by name, and one allreduce without state.
// A preset is a published system, or ours, as a row of a table: a selector, an exchange and the residual rules that fit
// it. A new algorithm is a file, a factory and a row in presets.cc; laws, bench and docs find it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/codec/codec.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

// Where mass stays that a step did not apply. residual.cc has a row for each; none: the preset's own rule.
enum class ResidualKind { none, sender_keeps, all_sent_cleared, holder_keeps, owner_memory };

// Rabenseifner: 2 log2(P) messages. Ring: 2(P - 1) messages, to neighbours only, for long vectors.
enum class DenseSchedule { automatic, rabenseifner, ring };

// How oktopk's global threshold changes between two exact evaluations (parts/thresholds.h): not at all (the paper's
// pseudocode), by small corrections (the authors' released code), or following the counts (ours).
enum class ThresholdRule { paper, published, steered };

struct AllreduceOptions {
  std::optional<Codec> codec = {};  // of every sparse frame; absent: coo32+fp32. dense: fp32 or, if lossy, bf16
  std::string skips = "halving";    // circulant: halving, direct, power, grid, radix:R or a list such as "8,4,2,1"
  ResidualKind residual = ResidualKind::none;
  int tau = 64;  // oktopk: steps between repartitions; no silence of a coordinate (q in docs/optimisers.md)
  ThresholdRule thresholds = ThresholdRule::steered;  // oktopk
  int tau_prime = 32;                                 // oktopk: steps between exact global thresholds, at first
  int bucket = 4;                                     // oktopk: peers per bucket of the split
  double balance_trigger = 4;                      // oktopk: balance when the largest share exceeds this times the mean
  DenseSchedule dense = DenseSchedule::automatic;  // of dense steps: preset dense, warm-up and flush
  friend bool operator==(const AllreduceOptions&, const AllreduceOptions&) = default;
};

// Names in text. find_*() throws UsageError that lists the names that exist.
std::string_view to_string(ResidualKind kind);
ResidualKind find_residual(std::string_view name);
std::string_view to_string(ThresholdRule rule);
ThresholdRule find_threshold_rule(std::string_view name);

class Allreduce;  // allreduce.h, private

struct Preset {
  std::string_view name;
  std::string_view summary;
  std::string_view selector;
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
std::string_view default_selector(const Preset& preset, const AllreduceOptions& options);

// The sum over the ranks is not finite, although every rank's values are. All ranks throw the same text: they are in
// step, and the communicator lives.
struct SumOverflow : UsageError {
  using UsageError::UsageError;
};

// The result of a step, in host memory. Mass: the sum over ranks of what they brought, plus what owners remembered,
// equals update + what residual rules and owners keep.
struct Outcome {
  SparseVector update;                  // the global sum, bitwise equal on all ranks
  Uninitialised<float> dense_update;    // dense algorithms: the sum of all; update is then empty
  SparseVector shared;                  // sender keeps: entries of this rank's selection that the update holds
  SparseVector returned;                // for this rank's residual: its rounding errors, released memory
  SparseVector held;                    // slots: entries of the selection that were not sent, because they did not fit
  Uninitialised<float> dense_returned;  // dense algorithms: the same, all n; empty: nothing returns
  SparseVector dropped;                 // partial sums that this rank pruned
  bool refreshed = false;               // this step re-evaluated thresholds or cuts, by extra messages
  // circulant: entries of all ranks in this rank's region, and entries of their union.
  std::uint64_t arrived = 0;
  std::uint64_t merged = 0;
};

// The indices to which the places of an owner's memory belong: runs of `tile` indices of its region, which begin
// `stride` apart.
struct MemoryLayout {
  Range region;
  Index tile = 1;
  Index stride = 1;

  std::uint64_t index(std::uint64_t place) const { return region.begin + place / tile * stride + place % tile; }
};

// Owner memory: the sums that an owner keeps between steps, in the device's memory. Empty with other residual rules.
// Places whose index is n or more hold zeros.
struct OwnerMemory : MemoryLayout {
  std::span<const float> values;
};

// Just the collective: one sparse allreduce without state before or after it. For a stream of steps a Reducer is
// better: it reuses thresholds, cuts and buffers, and keeps what was not applied. Outcome::update gets the k largest
// entries of the sum of all ranks' selections (as the preset defines them), equal on all ranks. The caller keeps what
// was not applied: `shared` holds the applied entries of its own; rules that prune on the way also give `returned` and
// `dropped`. There is no owner memory: circulant uses sender keeps. REQUIRES: selection canonical, at most 2k entries.
Outcome sparse_allreduce(Communicator& comm, CooView selection, Index n, std::size_t k,
                         const std::string& preset = "circulant", AllreduceOptions options = {});

}  // namespace oktopk
