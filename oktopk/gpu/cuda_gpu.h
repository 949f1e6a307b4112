// SPDX-License-Identifier: Apache-2.0
// A GPU as the library sees it: a context of liboktopk_cuda.so, its errors as DeviceError, and its memory. Private to
// this library: gpu/cuda.cc makes the Device of it, gpu/cuda_slots.cc the kernels of preset slots.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/device/device.h"
#include "oktopk/gpu/cuda_library.h"

namespace oktopk {

inline constexpr int kOldestCompute = 8;  // the major number of the oldest GPUs that the kernels are compiled for

inline std::string gigabytes(std::uint64_t bytes) {
  std::ostringstream text;
  text.precision(3);
  text << static_cast<double>(bytes) / 1e9 << " GB";
  return text.str();
}

// A context that is closed with its last owner: memory may outlive the device that allocated it.
class Gpu {
 public:
  explicit Gpu(const CudaOptions& options) : api_(load_cuda_api(options.library)), ordinal_(options.ordinal) {
    std::array<char, 512> text{};
    int count = 0;
    if (api_.device_count(&count, text.data(), text.size()) != 0 || count == 0)
      fail<DeviceError>("cuda device: no GPU can be used: ", count == 0 && text[0] == 0 ? "there is none" : text.data(),
                        ": see whether nvidia-smi lists one");
    require(ordinal_ >= 0 && ordinal_ < count, "cuda device: ordinal = ", ordinal_, ", but it must be in 0..",
            count - 1);
    if (api_.open(ordinal_, options.stream, &context_, text.data(), text.size()) != 0)
      fail<DeviceError>("cuda device: GPU ", ordinal_, " cannot be used: ", text.data());
    const OktopkCudaDescription about = describe();
    if (about.compute_major >= kOldestCompute) return;
    api_.close(context_);
    fail<DeviceError>("cuda device: GPU ", ordinal_, " (", about.name, ") has compute capability ", about.compute_major,
                      '.', about.compute_minor, ", but the kernels need ", kOldestCompute, ".0 or newer");
  }
  ~Gpu() { api_.close(context_); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  const OktopkCudaApi& api() const { return api_; }
  OktopkCudaContext* context() const { return context_; }

  template <class... Parameters, class... Arguments>
  void call(int (*OktopkCudaApi::*function)(OktopkCudaContext*, Parameters...), const char* verb,
            Arguments... arguments) const {
    if ((api_.*function)(context_, arguments...) != 0)
      fail<DeviceError>("cuda device: ", verb, " failed on GPU ", ordinal_, ": ", api_.error_text(context_));
  }

  OktopkCudaDescription describe() const {
    OktopkCudaDescription about{};
    call(&OktopkCudaApi::describe, "describe", &about);
    return about;
  }

  float* allocate(std::size_t n) const {
    void* memory = nullptr;
    const std::uint64_t bytes = n * sizeof(float);
    if (api_.allocate(context_, bytes, &memory) != 0) {
      const std::string error = api_.error_text(context_);
      const OktopkCudaDescription about = describe();
      fail<DeviceError>("cuda device: no ", gigabytes(bytes), " for n = ", n, " floats: GPU ", ordinal_, " (",
                        about.name, ") has ", gigabytes(about.free_bytes), " of ", gigabytes(about.memory_bytes),
                        " free (", error, ")");
    }
    return static_cast<float*>(memory);
  }

  // Whether memory lies on this GPU; false: on the host.
  bool has(const void* memory) const {
    if (memory == nullptr) return false;
    int place = -1;
    call(&OktopkCudaApi::locate, "locate", memory, &place);
    require(place == -1 || place == ordinal_, "cuda device: the memory lies on GPU ", place,
            ", but this device is GPU ", ordinal_);
    return place != -1;
  }

  void release(void* memory) const { api_.release(context_, memory); }

 private:
  const OktopkCudaApi& api_;
  int ordinal_;
  OktopkCudaContext* context_ = nullptr;
};

// The GPU of a CUDA device. UsageError for other devices.
std::shared_ptr<const Gpu> gpu_of(const Device& device);

}  // namespace oktopk
