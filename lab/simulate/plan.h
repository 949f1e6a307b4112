// SPDX-License-Identifier: Apache-2.0
// The plan of a row of `oktopk-lab simulate`, made before the simulation: which method runs, and how much smaller its
// problem must be so that all ranks fit into memory. Published presets run as published; circulant runs with the
// schedule that the tuner finds best for the platform, unless it is given, and on request with the tuner's coding;
// `auto` is the tuner's choice.
#pragma once

#include <string>

#include "lab/simulate/platforms.h"
#include "lab/simulate/spec.h"
#include "lab/simulate/supports.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

struct MethodWishes {
  std::string codec = "coo32+fp32";    // for all presets; auto: circulant's by the tuner
  std::string skips = "auto";          // or circulant's
  int group = 1;                       // ranks that sum densely first, for all but dense
  std::string thresholds = "steered";  // oktopk's
};

// `profile` has the platform's prices and the kernels'.
Method choose_method(const std::string& preset, const MethodWishes& wishes, const Problem& problem,
                     const Profile& profile);

// The platform as a tuner sees it; gamma, delta and sigma are the caller's.
Profile profile_of(const Platform& platform, const Machine& kernels);

// The support as the cost model takes it, with the overlap that its first selections have. COST: O(P k + n) time.
Problem model_of(const SupportSpec& support);

// The smallest power of two for SimulationSpec::scale at which all ranks together need at most `memory` bytes, by a
// rough estimate. UsageError where the problem would become too small.
int choose_scale(const SimulationSpec& spec, double memory);

}  // namespace oktopk
