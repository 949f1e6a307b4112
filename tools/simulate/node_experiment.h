// SPDX-License-Identifier: Apache-2.0
// A row of `oktopk simulate` with node-sum-first (reduce/node_reducer.h): what happens inside the
// nodes as messages of the right sizes, since n values per rank would not fit, and between their
// leaders the experiment as it is. The parts follow one another, so their times add up.
#pragma once

#include "tools/simulate/experiment.h"

namespace oktopk {

// Collective; the row is complete on leaders. REQUIRES: method.group > 1, and the problem knows its
// leaders' problem.
SimulatedRow simulate_nodes(Communicator& comm, const SimulationSpec& spec, const SimulatedProblem& problem,
                            const std::string& preset, const Method& method, const SimulatedClock& clock);

// Messages like those of a dense sum of n floats to rank 0 of the node. `shared` has 4n bytes.
void sized_node_sum(Communicator& node, Index n, std::span<std::byte> shared);

}  // namespace oktopk
