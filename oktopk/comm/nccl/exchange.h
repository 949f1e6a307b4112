// SPDX-License-Identifier: Apache-2.0
// The exchange over NCCL (gpu_exchange.h) with any answers to the questions of gpu_calls.h, so that tests run it
// without a GPU.
#pragma once

#include <functional>
#include <memory>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/nccl/gpu_calls.h"
#include "oktopk/comm/gpu_exchange.h"

namespace oktopk {

// `make_calls` may throw like make_gpu_calls().
using MakeGpuCalls = std::function<std::unique_ptr<GpuCalls>()>;
std::unique_ptr<GpuExchange> make_nccl_exchange(Communicator& comm, const NcclOptions& options,
                                                const MakeGpuCalls& make_calls);

}  // namespace oktopk
