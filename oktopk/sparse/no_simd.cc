// SPDX-License-Identifier: Apache-2.0
// For processors without variants of their own.
#include "oktopk/sparse/kernels.h"

namespace oktopk {

const SparseKernels& avx2_kernels() { return kScalarKernels; }

}  // namespace oktopk
