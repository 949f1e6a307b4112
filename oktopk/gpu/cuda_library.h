// SPDX-License-Identifier: Apache-2.0
// Loads liboktopk_cuda.so (gpu/kernels/cuda_api.h). It stays loaded: its kernels cannot be taken out of a process.
#pragma once

#include <string>

#include "oktopk/gpu/kernels/cuda_api.h"

namespace oktopk {

// `path` empty: beside the program or library that holds this function, then where the system looks. DeviceError that
// lists what was tried.
const OktopkCudaApi& load_cuda_api(const std::string& path);

}  // namespace oktopk
