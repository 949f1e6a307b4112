// SPDX-License-Identifier: Apache-2.0
// The exact k-th largest magnitude of values that lie on all ranks, without gathering them: a radix
// selection over the bits of |x|, six or seven per round, with the counts of all ranks added in
// each round. oktopk and circulant evaluate their thresholds with it (Ok-Topk's paper gathers the
// whole union instead).
//
// COST: 5 L messages with L = ceil(log2 P), one of 520 and four of 264 bytes for each of the L; a
// few passes over this rank's values, each over fewer of them.
#pragma once

#include <cstdint>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

struct KthSum {
  std::uint64_t total = 0;   // non-zero values on all ranks
  float magnitude = 0;       // the k-th largest; the smallest non-zero one where there are fewer
  std::uint64_t larger = 0;  // values on all ranks that are larger than it
};

class KthSumFinder {
 public:
  // Collective. REQUIRES: k >= 1 and equal on all ranks, values finite.
  KthSum find(Communicator& comm, std::span<const float> values, std::uint64_t k, Workspace& work);

  static Cost cost(int P);

 private:
  Uninitialised<std::uint32_t> candidates_;  // bits of the magnitudes that may be the k-th
};

}  // namespace oktopk
