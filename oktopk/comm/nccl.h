// SPDX-License-Identifier: Apache-2.0
// The exchange of GPU memory over NCCL 2.14 or newer, which is loaded at run time: a library that was built without it
// finds it where a program needs it. Any Communicator of the same ranks starts it; afterwards only NCCL moves data.
//
// Nothing blocks longer than the timeout. NCCL's own waits cannot be ended, so its communicator is one that does not
// block: an operation returns when NCCL has queued it on the stream. (NCCL_COMM_BLOCKING=1 in the environment takes the
// timeouts away.)
// NCCL wants one GPU per rank. Several ranks on one GPU, for a test, must be processes with these settings in the
// environment: another NCCL_HOSTID in each, NCCL_SOCKET_IFNAME=lo, NCCL_IB_DISABLE=1.
#pragma once

#include <memory>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/gpu_exchange.h"

namespace oktopk {

struct NcclOptions {
  int ordinal = 0;           // this rank's GPU
  std::string library = {};  // the path of NCCL's library; empty: libnccl.so.2, where the system looks
  Communicator::Duration timeout = Communicator::kDefaultTimeout;
  std::string cuda_library = {};  // the path of liboktopk_cuda.so; empty: as in CudaOptions
};

// Collective over `comm`, which must not be in use by others meanwhile, and may be destroyed afterwards. Every error is
// thrown on all ranks with the same text, which names the first rank that has it: DeviceError when NCCL or the GPU is
// missing or too old, UsageError for a bad option or different versions of NCCL, CommError when NCCL cannot connect the
// ranks within the timeout or three quarters of comm.timeout(). A step may use cudaStreamLegacy (null) and any stream
// that was created; cudaStreamPerThread is a UsageError, because NCCL queues from a thread of its own.
std::unique_ptr<GpuExchange> make_nccl_exchange(Communicator& comm, const NcclOptions& options = {});

}  // namespace oktopk
