// SPDX-License-Identifier: Apache-2.0
#include "lab/kernels/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace oktopk {
namespace {

constexpr double kShortest = 20e-6;  // a sample, so that the clock's own ticks do not count
constexpr int kMostRuns = 1000;

// seconds_of() gives the time of one run, from `runs` of them at once.
double seconds_of(const Body& body, int runs) {
  Timer timer;
  for (int i = 0; i < runs; ++i) body();
  return timer.lap() / runs;
}

int runs_for(double seconds) {
  if (seconds >= kShortest) return 1;
  return seconds > 0 ? std::min(kMostRuns, static_cast<int>(std::ceil(kShortest / seconds))) : kMostRuns;
}

}  // namespace

TimedPair time_in_turns(int repetitions, const Body& kernel, const Body& limit, const Body& prepare) {
  std::vector<double> kernels, limits;
  int kernel_runs = 1, limit_runs = 1;
  for (int i = -1; i < repetitions; ++i) {
    if (prepare) prepare();
    kernels.push_back(seconds_of(kernel, kernel_runs));
    if (limit && prepare) prepare();
    if (limit) limits.push_back(seconds_of(limit, limit_runs));
    if (i >= 0) continue;
    if (!prepare) {
      kernel_runs = runs_for(kernels[0]);
      limit_runs = limit ? runs_for(limits[0]) : 1;
    }
    kernels.clear();
    limits.clear();
  }
  return {summarise(kernels), summarise(limits)};
}

}  // namespace oktopk
