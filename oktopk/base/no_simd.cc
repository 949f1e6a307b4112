// SPDX-License-Identifier: Apache-2.0
// For processors other than x86-64.
#include "oktopk/base/simd.h"

namespace oktopk {

SimdLevel detect_simd_level() { return SimdLevel::scalar; }

}  // namespace oktopk
