// SPDX-License-Identifier: Apache-2.0
// All CUDA sources share this: the context with its scratch memory, the check of every CUDA call, and how elements are
// read. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "oktopk/gpu/kernels/cuda_api.h"

namespace oktopk::cuda {

struct CudaFailure : std::runtime_error {
  CudaFailure(cudaError_t status, const std::string& text) : std::runtime_error(text), code(status) {}
  cudaError_t code;
};

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not show up in the next call
  throw CudaFailure(status, std::string(what) + ": " + cudaGetErrorString(status));
}
#define OKTOPK_CUDA(call) ::oktopk::cuda::check(call, #call)

// After each launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Memory that only grows: of the GPU, or pinned memory of the host.
class Scratch {
 public:
  explicit Scratch(bool is_pinned = false) : is_pinned_(is_pinned) {}
  ~Scratch() { free(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `count` elements of T; what was in it is lost when it grows.
  template <class T>
  T* at_least(std::size_t count) {
    if (count * sizeof(T) > bytes_) grow(count * sizeof(T));
    return static_cast<T*>(memory_);
  }
  template <class T>
  T* get() const {
    return static_cast<T*>(memory_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void grow(std::size_t bytes);
  void free();

  bool is_pinned_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// An event without a time, made when it is first needed.
class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() {
    if (event_ == nullptr) OKTOPK_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    return event_;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

constexpr unsigned kMostBlocks = 512;  // of put_in_order, which has as many threads
constexpr unsigned long long kPublished = 1ULL << 63;

// A selection leaves this on the GPU between its kernels.
struct SelectionState {
  std::uint32_t reached;    // entries that reached the bound, also where there was no room for them
  std::uint32_t kth;        // magnitudes above this one stay
  std::uint32_t ties;       // and so many that are equal to it
  std::uint32_t prefix;     // leading bits of the k-th magnitude that are known
  std::uint32_t remaining;  // entries still wanted among those with this prefix
  std::uint32_t digits[2048];
  unsigned long long above[kMostBlocks];  // of each block of put_in_order: entries above kth, marked when known
  std::uint32_t equal[kMostBlocks];       // and entries equal to it
};

// The host must know this before it fetches a selection.
struct SelectionHead {
  std::uint32_t reached;
  std::uint32_t count;
};

}  // namespace oktopk::cuda

struct OktopkCudaContext {
  int ordinal = 0;
  cudaStream_t stream = nullptr;
  std::string error;
  bool times = false;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  oktopk::cuda::Event order;  // after the work on a stream that was replaced
  oktopk::cuda::Event mark;
  int multiprocessors = 1;

  oktopk::cuda::Scratch staged;        // a gradient that came from the host
  oktopk::cuda::Scratch cleared;       // indices, and behind them the start of each tile
  oktopk::cuda::Scratch lists;         // entries of a selection, tile by tile in any order
  oktopk::cuda::Scratch entries;       // the same in order; or entries from the host
  oktopk::cuda::Scratch tiles;         // where the entries of each tile are
  oktopk::cuda::Scratch small;         // states, bins, sums
  oktopk::cuda::Scratch pinned{true};  // results
  oktopk::cuda::Scratch head{true};    // of a selection
  std::size_t room = 0;                // entries that fit into `lists`
};

namespace oktopk::cuda {

// Around the kernels that kernel_milliseconds() is about.
inline void begin_timing(const OktopkCudaContext& context) {
  if (context.times) OKTOPK_CUDA(cudaEventRecord(context.begin, context.stream));
}
inline void end_timing(const OktopkCudaContext& context) {
  if (context.times) OKTOPK_CUDA(cudaEventRecord(context.end, context.stream));
}

inline void synchronise(OktopkCudaContext& context) { OKTOPK_CUDA(cudaStreamSynchronize(context.stream)); }

// visit(T) with a null pointer of the element type.
template <class Visit>
void for_type(std::uint32_t type, const Visit& visit) {
  switch (type) {
    case 0:
      return visit(static_cast<const float*>(nullptr));
    case 1:
      return visit(static_cast<const __nv_bfloat16*>(nullptr));
    case 2:
      return visit(static_cast<const __half*>(nullptr));
    default:
      throw CudaFailure(cudaErrorInvalidValue, "gradient type " + std::to_string(type) + ", but it must be 0, 1 or 2");
  }
}

inline unsigned blocks_for(std::uint64_t items, std::uint64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// Copies host memory of any kind to the GPU by way of pinned memory.
template <class T>
void send(OktopkCudaContext& context, T* to, const T* from, std::size_t count) {
  OKTOPK_CUDA(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, context.stream));
}

// The k-th largest magnitude of n elements is `kth` of the result, which the stream writes; 0 if k >= n.
const SelectionState* find_kth_of(OktopkCudaContext& context, const float* x, std::uint32_t n, std::uint32_t k);

// About work that others queue.
bool stream_done(void* stream);
void set_mark(OktopkCudaContext& context, void* stream);
bool mark_done(OktopkCudaContext& context);

// The verbs; api.cu puts them into the table.
void accumulate(OktopkCudaContext& context, const OktopkCudaPass& pass);
void accumulate_select(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint32_t bound, std::uint64_t most,
                       OktopkCudaEntries& out);
void multiply(OktopkCudaContext& context, float* x, std::uint64_t n, float factor);
std::uint64_t first_nonfinite(OktopkCudaContext& context, const void* x, std::uint32_t type, std::uint64_t n);
void magnitude_histogram(OktopkCudaContext& context, const float* x, std::uint64_t n, std::uint64_t* bins);
void sample_magnitudes(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint64_t offset,
                       std::uint64_t stride, std::uint64_t clusters, std::uint32_t* out);
void moments(OktopkCudaContext& context, const float* x, std::uint64_t n, double* sums, double* squares);
void add_at(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
            std::uint64_t count);
void clear_at(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, std::uint64_t count);
void add_take(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
              std::uint64_t count, std::uint32_t take, float* sums, float* before);

void limit_pass(OktopkCudaContext& context, std::uint32_t limit, const OktopkCudaPass& pass);

// Preset slots; `words` are messages (sparse/slots_format.h).
std::unique_ptr<OktopkCudaSlots> slots_open(OktopkCudaContext& context, std::uint64_t n, std::uint32_t P,
                                            std::uint32_t tag);
void slots_send(OktopkCudaContext& context, OktopkCudaSlots& slots, const OktopkCudaPass& pass, std::uint64_t k,
                std::uint32_t* words);
void slots_own(OktopkCudaContext& context, OktopkCudaSlots& slots, float* memory, const std::uint32_t* arrived,
               std::uint64_t k, std::uint32_t* share);
void slots_apply(OktopkCudaContext& context, OktopkCudaSlots& slots, const std::uint32_t* shares,
                 const std::uint32_t* sent, float* acc, std::uint64_t k, float divisor, void* out, std::uint32_t type);

// On the current GPU.
void optim_step(const OktopkCudaOptim& step);

}  // namespace oktopk::cuda
