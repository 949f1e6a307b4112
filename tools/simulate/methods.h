// SPDX-License-Identifier: Apache-2.0
// What the rows of `oktopk simulate` run: published presets as published, circulant with the
// schedule and coding that the tuner finds best for the platform unless they are given, `auto` what
// the tuner would choose.
#pragma once

#include <string>
#include <vector>

#include "oktopk/tune/candidates.h"
#include "tools/simulate/platforms.h"

namespace oktopk {

struct MethodWishes {
  std::string codec = "auto";          // or a codec, for all presets
  std::string skips = "auto";          // or circulant's
  int group = 1;                       // ranks that sum densely first, for all but dense
  std::string thresholds = "steered";  // oktopk's
};

// UsageError names what is unfit.
void check(const MethodWishes& wishes);

// `network` has the platform's prices and the kernels'.
std::vector<Method> choose_methods(const std::vector<std::string>& presets, const MethodWishes& wishes,
                                   const Problem& problem, const Profile& network);

// The platform as a tuner sees it; gamma, delta and sigma are the caller's.
Profile profile_of(const Platform& platform, const Machine& kernels);

}  // namespace oktopk
