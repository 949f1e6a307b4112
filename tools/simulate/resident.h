// SPDX-License-Identifier: Apache-2.0
// How much memory a preset needs per rank: what decides whether thousands of ranks in one process
// can exchange real data or only messages of the same sizes (sized.h).
#pragma once

#include <string_view>

namespace oktopk {

// About how many bytes one rank touches in a step of random supports: selection, buffers and
// result, with coo32+fp32; without the Reducer's residual. Buffers are posted with more capacity
// than messages fill, and what is not filled is not counted. Knows all presets, and oktopk_refresh:
// oktopk's step that gathers the whole union ("oktopk" is one that reuses its threshold).
// UsageError for other names, and unless 1 <= k <= n and P >= 1.
double resident_bytes(std::string_view preset, double n, double k, int P);

}  // namespace oktopk
