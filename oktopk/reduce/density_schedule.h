// SPDX-License-Identifier: Apache-2.0
// How many entries each step sends: stages of a warm-up first, then k. A stage of density 1 is
// synchronised densely. What it is good for: docs/learning.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oktopk/sparse/coo.h"

namespace oktopk {

struct DensityStage {
  std::uint64_t steps = 0;
  double density = 1;
};

using DensitySchedule = std::vector<DensityStage>;

// The first `steps` steps dense.
DensitySchedule dense_warmup(std::uint64_t steps);

// Deep Gradient Compression's warm-up (Lin et al., ICLR'18, arXiv 1712.01887): density 25%, then a
// quarter of it stage by stage until `density` is reached, in `steps` steps altogether.
DensitySchedule dgc_warmup(std::uint64_t steps, double density);

// k = density * n, at least 1 (n = 0: 0).
std::size_t entries_at(double density, Index n);

// The density of step `step`, or `after` when the stages are over.
double density_at(const DensitySchedule& schedule, std::uint64_t step, double after);

// UsageError unless all densities are in (0, 1].
void check_schedule(const DensitySchedule& schedule);

}  // namespace oktopk
