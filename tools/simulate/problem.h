// SPDX-License-Identifier: Apache-2.0
// What no simulated rank alone knows of its problem, found out before the simulation starts.
#pragma once

#include "tools/simulate/spec.h"
#include "tools/simulate/supports.h"

namespace oktopk {

// voted: also where oktopk's ranks would cut. COST: O(P k + n) time, two or three times; n floats.
SimulatedProblem make_problem(const SupportSpec& support, bool voted);

// As the cost model takes it, with the overlap of supports that was found.
Problem model_of(const SimulatedProblem& problem, int P);

}  // namespace oktopk
