// SPDX-License-Identifier: Apache-2.0
// Loads NCCL, and asks the GPU by way of liboktopk_cuda.so.
#include "oktopk/comm/nccl/calls.h"

#include <dlfcn.h>

#include <array>

#include "oktopk/base/error.h"
#include "oktopk/gpu/cuda_library.h"
#include "oktopk/gpu/kernels/cuda_api.h"

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

class CudaCalls final : public GpuCalls {
 public:
  CudaCalls(int ordinal, const std::string& library) : api_(load_cuda_api(library)), ordinal_(ordinal) {
    std::array<char, 512> text{};
    int count = 0;
    if (api_.device_count(&count, text.data(), text.size()) != 0 || count == 0)
      fail<DeviceError>("no GPU can be used: ", text[0] == 0 ? "there is none" : text.data(),
                        ": see whether nvidia-smi lists one");
    require(ordinal >= 0 && ordinal < count, "ordinal = ", ordinal, ", but it must be in 0..", count - 1);
    if (api_.open(ordinal, nullptr, &context_, text.data(), text.size()) != 0)
      fail<DeviceError>("GPU ", ordinal, " cannot be used: ", text.data());
  }
  ~CudaCalls() override { api_.close(context_); }
  CudaCalls(const CudaCalls&) = delete;
  CudaCalls& operator=(const CudaCalls&) = delete;

  int locate(const void* memory) override {
    int ordinal = -1;
    check(api_.locate(context_, memory, &ordinal), "locate");
    return ordinal;
  }

  void on_gpu(const std::function<void()>& act) override {
    const auto call = [](void* argument) { (*static_cast<const std::function<void()>*>(argument))(); };
    check(api_.call_on_gpu(context_, call, const_cast<std::function<void()>*>(&act)), "call_on_gpu");
  }

  bool is_done(void* stream) override {
    int done = 0;
    check(api_.stream_done(context_, stream, &done), "stream_done");
    return done != 0;
  }

  void set_mark(void* stream) override { check(api_.set_mark(context_, stream), "set_mark"); }

  bool passed_mark() override {
    int done = 0;
    check(api_.mark_done(context_, &done), "mark_done");
    return done != 0;
  }

 private:
  void check(int status, const char* verb) const {
    if (status != 0) fail<DeviceError>(verb, " failed on GPU ", ordinal_, ": ", api_.error_text(context_));
  }

  const OktopkCudaApi& api_;
  int ordinal_;
  OktopkCudaContext* context_ = nullptr;
};

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

std::unique_ptr<GpuCalls> make_gpu_calls(int ordinal, const std::string& library) {
  return std::make_unique<CudaCalls>(ordinal, library);
}

}  // namespace oktopk
