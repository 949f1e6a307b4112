// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/nccl/library.h"

#include <dlfcn.h>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

struct NcclLibrary {
  std::string path;
  void* handle;

  template <class Function>
  void find(const char* name, Function& out) const {
    out = reinterpret_cast<Function>(dlsym(handle, name));
    if (out == nullptr) fail<DeviceError>(path, " has no function ", name, ": it is not NCCL 2.14 or newer");
  }
};

NcclLibrary open_nccl(const std::string& given) {
  const std::string path = given.empty() ? "libnccl.so.2" : given;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    fail<DeviceError>(path, " was not found: install NCCL, or give its path in NcclOptions::library (", dlerror(), ")");
  return {path, handle};
}

void require_new_enough(const NcclLibrary& library, const NcclApi& api) {
  int version = 0;
  const int result = api.get_version(&version);
  if (result != kNcclSuccess) fail<DeviceError>(library.path, ": ncclGetVersion gave the error ", result);
  if (version < kOldestNccl)
    fail<DeviceError>(library.path, " is NCCL ", nccl_version_text(version), ", but ", nccl_version_text(kOldestNccl),
                      " or newer is needed: install it, or give its path in NcclOptions::library");
}

}  // namespace

NcclApi load_nccl(const std::string& path) {
  const NcclLibrary library = open_nccl(path);
  NcclApi api{};
  library.find("ncclGetVersion", api.get_version);
  require_new_enough(library, api);
  library.find("ncclGetErrorString", api.get_error_string);
  library.find("ncclGetLastError", api.get_last_error);
  library.find("ncclGetUniqueId", api.get_unique_id);
  library.find("ncclCommInitRankConfig", api.comm_init_rank_config);
  library.find("ncclCommGetAsyncError", api.comm_get_async_error);
  library.find("ncclCommFinalize", api.comm_finalize);
  library.find("ncclCommDestroy", api.comm_destroy);
  library.find("ncclCommAbort", api.comm_abort);
  library.find("ncclGroupStart", api.group_start);
  library.find("ncclGroupEnd", api.group_end);
  library.find("ncclSend", api.send);
  library.find("ncclRecv", api.recv);
  library.find("ncclAllGather", api.all_gather);
  library.find("ncclAllReduce", api.all_reduce);
  return api;
}

std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;  // up to 2.8 the major number had one place less
  return text_of(version / unit, '.', version % unit / 100, '.', version % 100);
}

}  // namespace oktopk
