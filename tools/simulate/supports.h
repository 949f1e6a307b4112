// SPDX-License-Identifier: Apache-2.0
// Selections without gradients, for worlds whose gradients would not fit into memory: which k of n
// indices a rank sends, and their values, made directly. The index space is cut into k strata of
// n/k indices; every rank picks one index in each, so that a selection is sorted as it is made.
//   iid         any index of the stratum alike: unions as of random supports
//   correlated  by a power law over the stratum's indices, in an order common to all ranks and
//               steps: m ranks overlap like about m^0.7 random ones; all entries at an index have
//               one sign for 16 steps, as where ranks share a signal that turns
//   layered     eight layers whose densities differ by up to 30 times, iid inside
// Values are those of steps with error feedback, in units of the local threshold: an index is sent
// when its accumulator has just passed it. For Gaussian noise at density d = k/n the threshold is
// about sqrt(1/d) standard deviations of one step, and a sum of steps passes it by 0.58 of one on
// average: |value| = 1 + 0.58 sqrt(d) * Exp(1), with a random sign unless correlated.
// COST: O(k) time and memory per selection. The same for the same (spec, rank, step).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

enum class Support { iid, correlated, layered };

struct SupportInfo {
  Support kind;
  std::string_view name;
  std::string_view summary;
};
std::span<const SupportInfo> supports();
Support find_support(std::string_view name);  // UsageError lists the names that exist
std::string_view to_string(Support kind);

struct SupportSpec {
  Index n = 0;
  std::size_t k = 0;
  int P = 1;
  Support kind = Support::iid;
  std::uint64_t seed = 1;
};

// out = rank's selection of this step: exactly k entries, canonical, none of them zero.
// REQUIRES: 1 <= k <= n, 0 <= rank < P.
void make_selection(const SupportSpec& spec, int rank, std::uint64_t step, SparseVector& out);

// The cuts on which all ranks' selections of a step agree by vote, as oktopk's do. COST: O(P k).
Cuts voted_cuts(const SupportSpec& spec, std::uint64_t step);

// What all selections of a step add up to. Sums that cancel to zero are not in the union, as in
// sum().
struct Survey {
  double kth_magnitude = 0;  // the k-th largest |sum|; 0 where fewer than k are not zero
  std::size_t union_size = 0;
  std::vector<std::size_t> region_unions;  // of each region of the cuts
};

// COST: one vector of n floats and one selection, however many ranks; O(P k + n) time.
// REQUIRES: cuts divide [0, n).
Survey survey(const SupportSpec& spec, std::uint64_t step, const Cuts& cuts);

}  // namespace oktopk
