// SPDX-License-Identifier: Apache-2.0
// For processors without variants of their own.
#include "oktopk/device/cpu_kernels.h"

namespace oktopk {

const CpuKernels& cpu_kernels_avx2() { return cpu_kernels_scalar(); }
const CpuKernels& cpu_kernels_avx512() { return cpu_kernels_scalar(); }

}  // namespace oktopk
