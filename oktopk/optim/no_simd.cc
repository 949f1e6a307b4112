// SPDX-License-Identifier: Apache-2.0
// For processors other than x86-64, which have the scalar kernels only.
#include "oktopk/optim/tensor_kernels.h"

namespace oktopk {

const TensorKernels* tensor_kernels_avx2() { return tensor_kernels_scalar(); }

}  // namespace oktopk
