// SPDX-License-Identifier: Apache-2.0
// The choices of one allreduce besides its preset, as plain values. All ranks must make the same ones.
#pragma once

#include <string>
#include <string_view>

#include "oktopk/codec/codec.h"
#include "oktopk/select/selector_kind.h"

namespace oktopk {

// Where mass stays that a step did not apply. residual.cc has a row for each; none: the preset's own rule.
enum class ResidualKind { none, sender_keeps, all_sent_cleared, holder_keeps, owner_memory };

// Rabenseifner: 2 log2(P) messages. Ring: 2(P - 1) messages, to neighbours only, for long vectors.
enum class DenseSchedule { automatic, rabenseifner, ring };

// How oktopk's global threshold changes between two exact evaluations (parts/thresholds.h): not at all (the paper's
// pseudocode), by small corrections (the authors' released code), or following the counts (ours).
enum class ThresholdRule { paper, published, steered };

struct AllreduceOptions {
  Codec codec = {};               // of every sparse frame; dense: fp32 or, if lossy, bf16
  std::string skips = "halving";  // circulant: see parse_skips in comm/skips.h
  ResidualKind residual = ResidualKind::none;
  int tau = 64;                                       // oktopk: steps between repartitions
  ThresholdRule thresholds = ThresholdRule::steered;  // oktopk
  int tau_prime = 32;                                 // oktopk: steps between exact global thresholds, at first
  int bucket = 4;                                     // oktopk: peers per bucket of the split
  double balance_trigger = 4;  // oktopk: balance when the largest share exceeds this times the mean
  DenseSchedule dense = DenseSchedule::automatic;
};

// Names in text. find_*() throws UsageError that lists the names that exist.
std::string_view to_string(ResidualKind kind);
ResidualKind find_residual(std::string_view name);
std::string_view to_string(ThresholdRule rule);
ThresholdRule find_threshold_rule(std::string_view name);

}  // namespace oktopk
