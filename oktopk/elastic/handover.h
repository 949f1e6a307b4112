// SPDX-License-Identifier: Apache-2.0
// A member that leaves an elastic run gives all that it has unsent to another one (elastic_reducer.h). The values go in
// pieces of 1 MiB with a hash each. All members take part, so that nobody waits for longer than a piece takes.
// COST: 4n bytes between the two, and a barrier per piece.
#pragma once

#include <cstddef>
#include <span>

#include "oktopk/comm/communicator.h"

namespace oktopk {

inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;  // of state and of unsent values

struct Handover {
  int from = 0, to = 0;  // ranks
};

// Collective: `values`, of the same size on both, become those of the giver. The other ranks' are not touched.
void hand_over(Communicator& comm, const Handover& handover, std::span<float> values, std::size_t n);

}  // namespace oktopk
