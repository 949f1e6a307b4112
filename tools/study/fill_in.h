// SPDX-License-Identifier: Apache-2.0
// Fill-in: how the number of non-zeros grows when selections are added up. Every step starts anew
// (no error feedback), with each preset's own selector.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/sparse/coo.h"
#include "tools/study/stream.h"

namespace oktopk {

struct FillInOptions {
  SourceOptions source;
  double density = 0.01;
};

// The union of m ranks' exact selections, as it arises in the phases of a halving reduce-scatter:
// ranks i, i + P/m, i + 2P/m, ...; mean over i and the steps.
struct UnionSize {
  int m = 1;
  double per_k = 1;
  double exponent = 0;  // g with per_k = m^g; 0 for m = 1
};

struct FillInRun {
  std::size_t k = 0;
  std::vector<std::pair<std::string, double>> updates;  // preset, mean entries of the update / k
  std::vector<UnionSize> unions;                        // m = 1, 2, 4, ... and P
};

// Union sizes of one step from all ranks' selections. REQUIRES: at least one rank, k >= 1.
std::vector<UnionSize> union_sizes(const std::vector<std::vector<Index>>& selections, std::size_t k);

// k of n entries at random and independent on m ranks: the expected union, per k.
double independent_union(double n, double k, int m);

// Collective.
FillInRun measure_fill_in(Communicator& comm, const FillInOptions& options);

}  // namespace oktopk
