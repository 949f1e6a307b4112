// SPDX-License-Identifier: Apache-2.0
// For processors without variants of their own.
#include "oktopk/codec/kernels.h"

namespace oktopk {

const CodecKernels& codec_kernels_avx2() { return codec_kernels_scalar(); }
const CodecKernels& codec_kernels_avx512() { return codec_kernels_scalar(); }

}  // namespace oktopk
