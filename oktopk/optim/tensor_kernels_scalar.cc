// SPDX-License-Identifier: Apache-2.0
// The kernels of tensor_kernels.h for any processor.
#include "oktopk/optim/tensor_kernels.h"

namespace oktopk {

const TensorKernels* tensor_kernels_scalar() { return kTensorKernels; }

}  // namespace oktopk
