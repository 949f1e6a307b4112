// SPDX-License-Identifier: Apache-2.0
// The kernels of tensor_kernels.h for AVX2 and FMA. oktopk/CMakeLists.txt has the flags of the compiler.
#include "oktopk/optim/tensor_kernels.h"

namespace oktopk {

const TensorKernels* tensor_kernels_avx2() { return kTensorKernels; }

}  // namespace oktopk
