// SPDX-License-Identifier: Apache-2.0
// P ranks that exchange the memory of their GPUs, for steps that stay on the GPU. Every operation
// is collective: all ranks call the same operations in the same order, with the same sizes.
//
// All memory is GPU memory. An operation is queued on `stream` (a cudaStream_t; null is CUDA's default stream), and
// nothing waits for it. Its buffers stay alive and untouched by others until the stream has passed it.
// Errors: an operation may fail long after it was queued. check() and wait() report that as a CommError, or as a
// DeviceError when the GPU itself failed. After either, and after kill(), the group is dead, and every further call is
// a CommError. Memory that is not this GPU's is a UsageError, which harms nothing.
// Threads: one thread at a time per object; each rank has its own object.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "oktopk/comm/communicator.h"

namespace oktopk {

class GpuExchange {
 public:
  virtual ~GpuExchange() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // P blocks each way: block q of send goes to rank q, block q of receive comes from rank q; the own block is included.
  // REQUIRES: send and receive do not overlap.
  virtual void all_to_all(const void* send, void* receive, std::size_t bytes_each, void* stream) = 0;

  // Block q of `all` is what rank q gave. `mine` may be this rank's block of `all`.
  virtual void all_gather(const void* mine, void* all, std::size_t bytes, void* stream) = 0;

  // In place. All ranks get the same bits, but not those of a sum in rank order.
  virtual void all_reduce(float* sum, std::size_t n, void* stream) = 0;

  // Throws CommError when an earlier operation failed or did not end in time, after it aborted the group. Does not
  // block beyond the timeout.
  virtual void check() = 0;

  // Waits until all work that is queued on the stream is done; CommError after the timeout.
  virtual void wait(void* stream) = 0;

  // Aborts the group: operations in flight end, here and soon on the other ranks, with undefined results.
  virtual void kill() noexcept = 0;
};

// The exchange of GPU memory over NCCL 2.14 or newer, which is loaded at run time: a library that was built without it
// finds it where a program needs it. Any Communicator of the same ranks starts it; afterwards only NCCL moves data.
//
// Nothing blocks longer than the timeout. NCCL's own waits cannot be ended, so its communicator is one that does not
// block: an operation returns when NCCL has queued it on the stream. (NCCL_COMM_BLOCKING=1 in the environment takes the
// timeouts away.)
// NCCL wants one GPU per rank. Several ranks on one GPU, for a test, must be processes with these settings in the
// environment: another NCCL_HOSTID in each, NCCL_SOCKET_IFNAME=lo, NCCL_IB_DISABLE=1.
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
