// SPDX-License-Identifier: Apache-2.0
// What the processor offers: simd_x86.cc asks it, no_simd.cc answers scalar for all others.
#pragma once

#include "oktopk/base/simd.h"

namespace oktopk {

SimdLevel detect_simd_level();

}  // namespace oktopk
