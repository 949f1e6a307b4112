// SPDX-License-Identifier: Apache-2.0
// For processors without variants of their own.
#include "oktopk/base/simd.h"

namespace oktopk {

SimdLevel detect_simd_level() { return SimdLevel::scalar; }

}  // namespace oktopk
