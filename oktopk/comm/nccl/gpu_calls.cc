// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/nccl/gpu_calls.h"

#include <array>

#include "oktopk/base/error.h"
#include "oktopk/gpu/kernels/cuda_api.h"
#include "oktopk/gpu/cuda_library.h"

namespace oktopk {
namespace {

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

std::unique_ptr<GpuCalls> make_gpu_calls(int ordinal, const std::string& library) {
  return std::make_unique<CudaCalls>(ordinal, library);
}

}  // namespace oktopk
