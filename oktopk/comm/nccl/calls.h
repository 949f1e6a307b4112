// SPDX-License-Identifier: Apache-2.0
// The calls of the exchange over NCCL: a part of NCCL's C interface, with its loader, and the few questions that the
// exchange asks of the GPU itself. Tests answer both without a GPU.
#pragma once

#include <climits>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/gpu_exchange.h"

namespace oktopk {

// NCCL. No header of NCCL is needed to build: these are declarations of our own, after NCCL's documentation, valid for
// every NCCL 2 from 2.14 on. A loaded NCCL stays loaded.

struct NcclGroup;  // ncclComm; only pointers to it exist here

struct NcclId {  // ncclUniqueId
  char bytes[128];
};

// Values of ncclResult_t; all others are errors.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInvalidUsage = 5;
inline constexpr int kNcclInProgress = 7;

inline constexpr int kNcclBytes = 0;   // ncclInt8 of ncclDataType_t
inline constexpr int kNcclFloats = 7;  // ncclFloat32
inline constexpr int kNcclSum = 0;     // of ncclRedOp_t

inline constexpr int kOldestNccl = 21400;  // 2.14.0: the first with communicators that do not block

// ncclConfig_t as in NCCL 2.14. Newer ones append members, and read only as many as `size` and `version` promise.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;
  int blocking = 0;
  int padding = INT_MIN;  // the value for "not set", should a newer NCCL ever read it
};

// Functions of NCCL: send is ncclSend, and so on. Each int that a function returns is an ncclResult_t; a stream is
// a cudaStream_t.
struct NcclApi {
  int (*get_version)(int* version);
  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(NcclGroup* group);
  int (*get_unique_id)(NcclId* id);
  int (*comm_init_rank_config)(NcclGroup** out, int P, NcclId id, int rank, NcclConfig* config);
  int (*comm_get_async_error)(NcclGroup* group, int* result);
  int (*comm_finalize)(NcclGroup* group);
  int (*comm_destroy)(NcclGroup* group);
  int (*comm_abort)(NcclGroup* group);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* from, std::size_t count, int type, int peer, NcclGroup* group, void* stream);
  int (*recv)(void* to, std::size_t count, int type, int peer, NcclGroup* group, void* stream);
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, NcclGroup* group, void* stream);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int sum, NcclGroup* group, void* stream);
};

// `path` empty: libnccl.so.2, where the system looks. DeviceError when it is missing, no NCCL, or too old.
NcclApi load_nccl(const std::string& path);

// "2.27.3" for what get_version gives.
std::string nccl_version_text(int version);

// Where memory lies, and whether queued work is done. None of the calls waits. Every call throws DeviceError when the
// GPU failed.
class GpuCalls {
 public:
  virtual ~GpuCalls() = default;

  // The GPU on which `memory` lies; -1: host memory.
  virtual int locate(const void* memory) = 0;

  // Calls act with this GPU as the thread's current one. REQUIRES: act does not throw.
  virtual void on_gpu(const std::function<void()>& act) = 0;

  // Whether all work that was queued on the stream is done.
  virtual bool is_done(void* stream) = 0;

  // Puts the only mark behind all work that is queued on the stream now. While a CUDA graph captures the stream, the
  // mark stays where it is.
  virtual void set_mark(void* stream) = 0;
  // Whether the GPU has passed the mark; true before the first set_mark().
  virtual bool passed_mark() = 0;
};

// GPU `ordinal` by way of liboktopk_cuda.so (`library`: its path; empty: as in CudaOptions). DeviceError without a GPU,
// a driver or the library; UsageError if there is no such GPU.
std::unique_ptr<GpuCalls> make_gpu_calls(int ordinal, const std::string& library);

// The exchange over NCCL (gpu_exchange.h) with any answers to these questions. `make_calls` may throw like
// make_gpu_calls().
using MakeGpuCalls = std::function<std::unique_ptr<GpuCalls>()>;
std::unique_ptr<GpuExchange> make_nccl_exchange(Communicator& comm, const NcclOptions& options,
                                                const MakeGpuCalls& make_calls);

}  // namespace oktopk
