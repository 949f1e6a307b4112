// SPDX-License-Identifier: Apache-2.0
// The kernels of tensor_kernels.h for AVX2 and FMA: oktopk/CMakeLists.txt has the compiler's flags.
#include "oktopk/optim/tensor_kernels.h"

namespace oktopk {

const TensorKernels& tensor_kernels_avx2() { return tensor_kernels(); }

}  // namespace oktopk
