// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's C interface that the library uses, and its loader. No header of NCCL is needed to build: these are
// declarations of our own, after NCCL's documentation, valid for every NCCL 2 from 2.14 on. A loaded NCCL stays loaded.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

namespace oktopk {

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

}  // namespace oktopk
