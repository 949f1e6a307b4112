// SPDX-License-Identifier: Apache-2.0
// circulant's owners as after many steps: their memory is stationary and the threshold has settled. One rank makes
// these steps for all, without messages, because simulated messages are slow: it adds the selections of all ranks to
// one memory of [0, n), takes the share of each step from it, as circulant's owners do from their parts, and steers the
// same threshold with the same counts. Then each rank loads the state of its region.
//
// With random signs the memory of an index is a random walk in steps of about one local threshold. It ends when its
// magnitude passes the global threshold, sqrt(P) local ones, because k of n indices pass it while each gets P k / n
// entries per step. So the memory starts from the stationary distribution of such walks, a triangle. Correlated entries
// at an index have one sign for 16 steps; the global threshold settles at 0.55 to 0.59 P local ones at 1%, and the
// triangle ends at P/2.
//
// COST: settling_steps() * P * k entries at 20 to 60 ns each, on one core; 20 bytes per index.
#pragma once

#include "lab/simulate/supports.h"
#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/region_memory.h"
#include "oktopk/allreduce/parts/thresholds.h"

namespace oktopk {

// 2 n/k, so that each index is applied twice, or as many as have 300 million entries; at least 24, because the
// threshold aims too high until then.
std::uint64_t settling_steps(const SupportSpec& spec);

struct SettledOwners {
  std::uint64_t steps = 0;  // made so far; the next selections are those of step `steps`
  Cuts cuts;                // voted in step 0
  RegionMemory memory;      // of all owners
  GlobalThreshold threshold;
  double gathered = 0;  // entries in the last step's shares, over k

  // circulant of this rank goes on from here.
  void load_into(Allreduce& circulant, const SupportSpec& spec, int rank) const;
};

SettledOwners settle_owners(const SupportSpec& spec);

}  // namespace oktopk
