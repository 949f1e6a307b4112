// SPDX-License-Identifier: Apache-2.0
// Selections without gradients, which would not fit into memory for all ranks: the k indices of n that a rank sends,
// and their values, made directly. The index space is cut into k strata of n/k indices; every rank picks one index in
// each, so that a selection is sorted as it is made.
//   iid         any index of the stratum alike: unions as of random supports
//   correlated  by a power law over the stratum's indices, in an order common to all ranks and steps: m ranks overlap
//               like about m^0.7 random ones; all entries at an index have one sign for 16 steps
//   layered     eight layers whose densities differ by up to 30 times, iid inside
// |value| = 1 + 0.58 sqrt(k/n) Exp(1), as with error feedback (docs/simulation.md); the sign is random unless
// correlated. COST: O(k) time and memory per selection. The same for the same (spec, rank, step).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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

// The cuts on which the ranks' first selections agree by vote, as oktopk's do. COST: O(P k).
Cuts voted_cuts(const SupportSpec& spec);

// How many indices the ranks' first selections have together. COST: O(P k + n) time, n bits.
std::size_t union_size(const SupportSpec& spec);

}  // namespace oktopk
