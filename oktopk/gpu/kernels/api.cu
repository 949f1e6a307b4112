// SPDX-License-Identifier: Apache-2.0
// The table of cuda_api.h, and the life of a context. No exception leaves a function of the table: it becomes an error
// number and a text.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "oktopk/gpu/kernels/slots.cuh"

namespace oktopk::cuda {

namespace {

using Context = OktopkCudaContext;
constexpr int kUnknownError = 999;

void put_text(const char* from, char* text, std::size_t room) {
  if (room == 0) return;
  const std::size_t size = std::min(std::strlen(from), room - 1);
  std::memcpy(text, from, size);
  text[size] = 0;
}

template <class Act>
int guard_text(char* text, std::size_t room, const Act& act) {
  try {
    act();
    return 0;
  } catch (const CudaFailure& failure) {
    put_text(failure.what(), text, room);
    return failure.code == cudaSuccess ? kUnknownError : static_cast<int>(failure.code);
  } catch (const std::exception& error) {
    put_text(error.what(), text, room);
    return kUnknownError;
  }
}

// Calls act with the context's GPU as the current one, and puts back the one that the thread had.
template <class Act>
int guard(Context* context, const Act& act) {
  try {
    int before = 0;
    OKTOPK_CUDA(cudaGetDevice(&before));
    if (before != context->ordinal) OKTOPK_CUDA(cudaSetDevice(context->ordinal));
    const std::unique_ptr<int, void (*)(int*)> back(&before, [](int* ordinal) { cudaSetDevice(*ordinal); });
    act();
    return 0;
  } catch (const CudaFailure& failure) {
    context->error = failure.what();
    return failure.code == cudaSuccess ? kUnknownError : static_cast<int>(failure.code);
  } catch (const std::exception& error) {
    context->error = error.what();
    return kUnknownError;
  }
}

int device_count(int* count, char* text, std::size_t room) {
  return guard_text(text, room, [&] { OKTOPK_CUDA(cudaGetDeviceCount(count)); });
}

void close(Context* context) {
  if (context == nullptr) return;
  guard(context, [&] {
    if (context->begin != nullptr) cudaEventDestroy(context->begin);
    if (context->end != nullptr) cudaEventDestroy(context->end);
  });
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(context->ordinal);  // its memory is freed there
  const int ordinal = context->ordinal;
  delete context;
  if (before != ordinal) cudaSetDevice(before);
}

int open(int ordinal, void* stream, Context** out, char* text, std::size_t room) {
  *out = nullptr;
  auto context = std::unique_ptr<Context, void (*)(Context*)>(new (std::nothrow) Context, close);
  if (!context) return kUnknownError;
  context->ordinal = ordinal;
  context->stream = static_cast<cudaStream_t>(stream);
  const int status = guard(context.get(), [&] {
    OKTOPK_CUDA(cudaFree(nullptr));  // makes the primary context: a driver that does not work shows here
    OKTOPK_CUDA(cudaEventCreate(&context->begin));
    OKTOPK_CUDA(cudaEventCreate(&context->end));
    OKTOPK_CUDA(cudaDeviceGetAttribute(&context->multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
  });
  if (status != 0)
    put_text(context->error.c_str(), text, room);
  else
    *out = context.release();
  return status;
}

const char* error_text(const Context* context) { return context->error.c_str(); }

int describe(Context* context, OktopkCudaDescription* out) {
  return guard(context, [&] {
    cudaDeviceProp properties;
    OKTOPK_CUDA(cudaGetDeviceProperties(&properties, context->ordinal));
    std::size_t free_bytes = 0;
    std::size_t all_bytes = 0;
    OKTOPK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
    *out = {};
    put_text(properties.name, out->name, sizeof(out->name));
    out->compute_major = properties.major;
    out->compute_minor = properties.minor;
    out->memory_bytes = all_bytes;
    out->free_bytes = free_bytes;
  });
}

int set_stream(Context* context, void* stream) {
  const auto next = static_cast<cudaStream_t>(stream);
  return guard(context, [&] {
    if (next == context->stream) return;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    OKTOPK_CUDA(cudaStreamIsCapturing(next, &capture));
    if (capture == cudaStreamCaptureStatusNone) {  // a graph cannot wait for work outside it: its owner has waited
      OKTOPK_CUDA(cudaEventRecord(context->order.get(), context->stream));
      OKTOPK_CUDA(cudaStreamWaitEvent(next, context->order.get(), 0));
    }
    context->stream = next;
  });
}

int set_timing(Context* context, int on) {
  context->times = on != 0;
  return 0;
}

int kernel_milliseconds(Context* context, float* out) {
  return guard(context, [&] {
    OKTOPK_CUDA(cudaEventSynchronize(context->end));
    OKTOPK_CUDA(cudaEventElapsedTime(out, context->begin, context->end));
  });
}

int allocate(Context* context, std::uint64_t bytes, void** out) {
  return guard(context, [&] {
    OKTOPK_CUDA(cudaMalloc(out, bytes == 0 ? 1 : bytes));
    OKTOPK_CUDA(cudaMemsetAsync(*out, 0, bytes, context->stream));
    synchronise(*context);
  });
}

int release(Context* context, void* memory) {
  return guard(context, [&] { OKTOPK_CUDA(cudaFree(memory)); });
}

int locate(Context* context, const void* memory, int* ordinal) {
  return guard(context, [&] {
    cudaPointerAttributes attributes;
    OKTOPK_CUDA(cudaPointerGetAttributes(&attributes, memory));
    const bool is_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    *ordinal = is_device ? attributes.device : -1;
  });
}

int copy(Context* context, void* to, const void* from, std::uint64_t bytes) {
  return guard(context, [&] {
    OKTOPK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context->stream));
    synchronise(*context);
  });
}

int zero(Context* context, void* memory, std::uint64_t bytes) {
  return guard(context, [&] { OKTOPK_CUDA(cudaMemsetAsync(memory, 0, bytes, context->stream)); });
}

int stage(Context* context, const void* host, std::uint64_t bytes, const void** out) {
  return guard(context, [&] {
    auto* staged = context->staged.at_least<std::byte>(bytes);
    OKTOPK_CUDA(cudaMemcpyAsync(staged, host, bytes, cudaMemcpyHostToDevice, context->stream));
    *out = staged;
  });
}

int slots_state(Context* context, OktopkCudaSlots* slots, OktopkCudaSlotsState* out) {
  return guard(context, [&] {
    SlotsState state;
    OKTOPK_CUDA(cudaMemcpyAsync(&state, slots->state(), sizeof(state), cudaMemcpyDeviceToHost, context->stream));
    synchronise(*context);
    *out = {state.step,    slots->local_k, slots->global_k, state.local_bound, state.global_bound,
            state.was_bad, state.wrong,    state.sent,      state.applied};
  });
}

int slots_set_state(Context* context, OktopkCudaSlots* slots, const OktopkCudaSlotsState* from) {
  return guard(context, [&] {
    SlotsState state;
    OKTOPK_CUDA(cudaMemcpyAsync(&state, slots->state(), sizeof(state), cudaMemcpyDeviceToHost, context->stream));
    synchronise(*context);
    state.step = from->step;
    state.local_bound = from->local_bound;
    state.global_bound = from->global_bound;
    state.was_bad = from->void_steps;
    state.wrong = from->fault;
    slots->local_k = from->local_k;
    slots->global_k = from->global_k;
    OKTOPK_CUDA(cudaMemcpyAsync(slots->state(), &state, sizeof(state), cudaMemcpyHostToDevice, context->stream));
    OKTOPK_CUDA(cudaMemsetAsync(slots->published.get<void>(), 0, slots->published.bytes(), context->stream));
    synchronise(*context);
  });
}

const OktopkCudaApi kApi = {
    .version = OKTOPK_CUDA_API_VERSION,
    .device_count = device_count,
    .open = open,
    .close = close,
    .error_text = error_text,
    .describe = describe,
    .set_stream = set_stream,
    .set_timing = set_timing,
    .kernel_milliseconds = kernel_milliseconds,
    .limit_pass =
        [](Context* c, std::uint32_t limit, const OktopkCudaPass* pass) {
          return guard(c, [&] { oktopk::cuda::limit_pass(*c, limit, *pass); });
        },
    .allocate = allocate,
    .release = release,
    .locate = locate,
    .copy = copy,
    .zero = zero,
    .stage = stage,
    .accumulate = [](Context* c,
                     const OktopkCudaPass* pass) { return guard(c, [&] { oktopk::cuda::accumulate(*c, *pass); }); },
    .accumulate_select =
        [](Context* c, const OktopkCudaPass* pass, std::uint32_t bound, std::uint64_t most, OktopkCudaEntries* out) {
          return guard(c, [&] { oktopk::cuda::accumulate_select(*c, *pass, bound, most, *out); });
        },
    .multiply = [](Context* c, float* x, std::uint64_t n,
                   float factor) { return guard(c, [&] { oktopk::cuda::multiply(*c, x, n, factor); }); },
    .first_nonfinite =
        [](Context* c, const void* x, std::uint32_t type, std::uint64_t n, std::uint64_t* out) {
          return guard(c, [&] { *out = oktopk::cuda::first_nonfinite(*c, x, type, n); });
        },
    .magnitude_histogram =
        [](Context* c, const float* x, std::uint64_t n, std::uint64_t* bins) {
          return guard(c, [&] { oktopk::cuda::magnitude_histogram(*c, x, n, bins); });
        },
    .sample_magnitudes =
        [](Context* c, const OktopkCudaPass* pass, std::uint64_t offset, std::uint64_t stride, std::uint64_t clusters,
           std::uint32_t* out) {
          return guard(c, [&] { oktopk::cuda::sample_magnitudes(*c, *pass, offset, stride, clusters, out); });
        },
    .moments = [](Context* c, const float* x, std::uint64_t n, double* sums,
                  double* squares) { return guard(c, [&] { oktopk::cuda::moments(*c, x, n, sums, squares); }); },
    .add_at = [](Context* c, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
                 std::uint64_t count) { return guard(c, [&] { oktopk::cuda::add_at(*c, x, base, idx, val, count); }); },
    .clear_at = [](Context* c, float* x, std::uint32_t base, const std::uint32_t* idx,
                   std::uint64_t count) { return guard(c, [&] { oktopk::cuda::clear_at(*c, x, base, idx, count); }); },
    .add_take =
        [](Context* c, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val, std::uint64_t count,
           std::uint32_t take, float* sums, float* before) {
          return guard(c, [&] { oktopk::cuda::add_take(*c, x, base, idx, val, count, take, sums, before); });
        },
    .slots_open =
        [](Context* c, std::uint64_t n, std::uint32_t P, std::uint32_t tag, OktopkCudaSlots** out) {
          return guard(c, [&] { *out = oktopk::cuda::slots_open(*c, n, P, tag).release(); });
        },
    .slots_close = [](Context* c, OktopkCudaSlots* slots) { guard(c, [&] { delete slots; }); },
    .slots_send =
        [](Context* c, OktopkCudaSlots* slots, const OktopkCudaPass* pass, std::uint64_t k, std::uint32_t* messages) {
          return guard(c, [&] { oktopk::cuda::slots_send(*c, *slots, *pass, k, messages); });
        },
    .slots_own =
        [](Context* c, OktopkCudaSlots* slots, float* memory, const std::uint32_t* arrived, std::uint64_t k,
           std::uint32_t* share) {
          return guard(c, [&] { oktopk::cuda::slots_own(*c, *slots, memory, arrived, k, share); });
        },
    .slots_apply =
        [](Context* c, OktopkCudaSlots* slots, const std::uint32_t* shares, const std::uint32_t* sent, float* acc,
           std::uint64_t k, float divisor, void* out, std::uint32_t type) {
          return guard(c, [&] { oktopk::cuda::slots_apply(*c, *slots, shares, sent, acc, k, divisor, out, type); });
        },
    .slots_state = slots_state,
    .slots_set_state = slots_set_state,
    .call_on_gpu = [](Context* c, void (*act)(void*), void* argument) { return guard(c, [&] { act(argument); }); },
    .stream_done = [](Context* c, void* stream,
                      int* done) { return guard(c, [&] { *done = oktopk::cuda::stream_done(stream); }); },
    .set_mark = [](Context* c, void* stream) { return guard(c, [&] { oktopk::cuda::set_mark(*c, stream); }); },
    .mark_done = [](Context* c, int* done) { return guard(c, [&] { *done = oktopk::cuda::mark_done(*c); }); },
    .optim_step = [](Context* c, const OktopkCudaOptim* o) { return guard(c, [&] { cuda::optim_step(*o); }); },
};

}  // namespace
}  // namespace oktopk::cuda

extern "C" const OktopkCudaApi* oktopk_cuda_api(void) { return &oktopk::cuda::kApi; }
