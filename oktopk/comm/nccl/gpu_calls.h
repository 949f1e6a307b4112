// SPDX-License-Identifier: Apache-2.0
// The few questions that an exchange of GPU memory asks of the GPU itself: where memory lies, and whether queued work
// is done. None of them waits. Every call throws DeviceError when the GPU failed. Tests answer them without a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace oktopk {

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

}  // namespace oktopk
