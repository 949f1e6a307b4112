// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/density_schedule.h"

#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"

namespace oktopk {

DensitySchedule dense_warmup(std::uint64_t steps) {
  return steps == 0 ? DensitySchedule{} : DensitySchedule{{steps, 1.0}};
}

DensitySchedule dgc_warmup(std::uint64_t steps, double density) {
  require(density > 0 && density <= 1, "dgc_warmup: density = ", density, ", but it must be in (0, 1]");
  std::vector<double> densities;
  for (double d = 0.25; d > density; d /= 4) densities.push_back(d);
  DensitySchedule schedule;
  const std::uint64_t stages = densities.size();
  for (std::uint64_t s = 0; s < stages; ++s) {
    const std::uint64_t length = steps * (s + 1) / stages - steps * s / stages;
    if (length > 0) schedule.push_back({length, densities[s]});
  }
  return schedule;
}

std::size_t entries_at(double density, Index n) {
  if (n == 0) return 0;
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(density * n)));
}

double density_at(const DensitySchedule& schedule, std::uint64_t step, double after) {
  for (const DensityStage& stage : schedule) {
    if (step < stage.steps) return stage.density;
    step -= stage.steps;
  }
  return after;
}

void check_schedule(const DensitySchedule& schedule) {
  for (const DensityStage& stage : schedule)
    require(stage.density > 0 && stage.density <= 1, "warm-up: density = ", stage.density,
            ", but it must be in (0, 1]");
}

}  // namespace oktopk
