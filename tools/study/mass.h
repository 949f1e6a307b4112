// SPDX-License-Identifier: Apache-2.0
// What an algorithm and its residual rule lose: accumulators + owner memory before a step, less
// update + residuals + owner memory after it, index by index. Law 3 (docs/laws.md) says that it is
// zero; here it is measured, also where it is not.
#pragma once

#include <vector>

#include "oktopk/reduce/reducer.h"
#include "tools/study/stream.h"

namespace oktopk {

struct MassOptions {
  std::vector<ReducerOptions> cases;
  SourceOptions source;
};

// In 1-norms over the indices.
struct MassRun {
  double brought = 0;            // | sum of all gradients |
  double lost = 0;               // | brought - applied - residuals - memory | at the end
  std::vector<double> per_step;  // | lost in the step | / | its update |
  std::vector<double> total;     // | lost so far | / | brought so far |

  double share() const { return brought > 0 ? lost / brought : 0; }
};

// Collective; every rank gets it. One run for each case, all with the same gradients.
std::vector<MassRun> measure_mass(Communicator& comm, const MassOptions& options);

}  // namespace oktopk
