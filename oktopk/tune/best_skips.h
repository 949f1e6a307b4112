// SPDX-License-Identifier: Apache-2.0
// The skip list of least predicted time for a circulant reduce-scatter, by dynamic programming:
//   best(S) = min over T < S of phase(S, T) + best(T),   best(1) = 0,
// with phase(S, T) the time in which ranks that hold S blocks come to hold T of them
// (comm/skips.h). COST: O(P^2) additions, once per decision.
#pragma once

#include "oktopk/codec/codec.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

Skips best_skips(const Problem& problem, Codec codec, const Machine& machine);

}  // namespace oktopk
