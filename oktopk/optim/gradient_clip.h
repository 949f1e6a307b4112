// SPDX-License-Identifier: Apache-2.0
// Clipping by global norm: the ranks agree on one factor for all their gradients before the step.
// ||mean g|| <= root mean square of ||g_r||, so bounding the latter bounds the norm of the mean;
// with P = 1 it is the usual clipping. COST: one pass over the gradient; ceil(log2 P) messages of a
// few bytes.
#pragma once

#include <span>

#include "oktopk/comm/collectives.h"

namespace oktopk {

// Collective: min(1, clip_norm / sqrt(sum over the ranks of ||g_r||^2 / P)), the same bits on all
// ranks. 1 when some rank's gradient is not finite: what then happens is for the synchroniser.
float clip_factor(Communicator& comm, std::span<const float> gradient, float clip_norm, Workspace& work);

}  // namespace oktopk
