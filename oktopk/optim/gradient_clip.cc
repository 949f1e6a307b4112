// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/gradient_clip.h"

#include <cmath>

namespace oktopk {

float clip_factor(Communicator& comm, std::span<const float> gradient, float clip_norm, Workspace& work) {
  double squares = 0;
  for (const float g : gradient) squares += double{g} * g;
  squares = allreduce_small(comm, squares, Reduction::sum, work);
  const double norm = std::sqrt(squares / comm.size());
  if (!std::isfinite(norm) || norm <= clip_norm) return 1;
  return static_cast<float>(clip_norm / norm);
}

}  // namespace oktopk
