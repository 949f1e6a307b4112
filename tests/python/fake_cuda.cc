// SPDX-License-Identifier: Apache-2.0
// A liboktopk_cuda.so for machines without a GPU: the verbs of Device in plain loops. The memory of its GPU has no
// access rights except while a function runs, so code of the host that touches it dies by a signal. test_gpu_device.py
// compiles it. Preset slots is not there.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "oktopk/base/gradient.h"
#include "oktopk/gpu/kernels/cuda_api.h"

struct OktopkCudaContext {
  void* stream = nullptr;
  std::map<std::byte*, std::size_t> blocks;  // of its memory
  std::vector<std::uint32_t> idx;
  std::vector<float> val;
  std::vector<std::byte> staged;
};

namespace {

using Context = OktopkCudaContext;
std::atomic<int> streams_seen = 0;

class Open {
 public:
  explicit Open(const Context* context) : context_(*context) { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }

 private:
  void protect(int rights) const {
    for (const auto& [memory, bytes] : context_.blocks) mprotect(memory, bytes, rights);
  }

  const Context& context_;
};

std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

float widen(const void* x, std::uint32_t type, std::uint64_t i) {
  return oktopk::Gradient(x, i + 1, static_cast<oktopk::FloatType>(type))[i];
}

bool is_cleared(const OktopkCudaPass& pass, std::uint64_t i) {
  return std::binary_search(pass.cleared, pass.cleared + pass.cleared_count, i);
}

float accumulated(const OktopkCudaPass& pass, std::uint64_t i) {
  const float before = is_cleared(pass, i) ? 0.0F : pass.acc[i];
  return pass.gradient == nullptr ? before : before + pass.scale * widen(pass.gradient, pass.gradient_type, i);
}

int device_count(int* count, char*, std::size_t) { return *count = 1, 0; }
int open(int, void*, Context** out, char*, std::size_t) { return *out = new Context, 0; }
void close(Context* context) { delete context; }
const char* error_text(const Context*) { return "an error of the fake"; }

int describe(Context*, OktopkCudaDescription* out) {
  *out = {.name = "fake", .compute_major = 9, .compute_minor = 0, .memory_bytes = 1, .free_bytes = 1};
  return 0;
}

int set_stream(Context* context, void* stream) {
  streams_seen += context->stream != stream ? 1 : 0;
  context->stream = stream;
  return 0;
}

int allocate(Context* context, std::uint64_t bytes, void** out) {
  *out = mmap(nullptr, bytes + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  context->blocks[static_cast<std::byte*>(*out)] = bytes + 1;
  return 0;
}

int release(Context* context, void* memory) {
  const auto block = context->blocks.find(static_cast<std::byte*>(memory));
  munmap(memory, block->second);
  context->blocks.erase(block);
  return 0;
}

int locate(Context* context, const void* memory, int* ordinal) {
  const auto* x = static_cast<const std::byte*>(memory);
  *ordinal = -1;
  for (const auto& [begin, bytes] : context->blocks)
    if (x >= begin && x < begin + bytes) *ordinal = 0;
  return 0;
}

int copy(Context* context, void* to, const void* from, std::uint64_t bytes) {
  const Open open(context);
  std::memcpy(to, from, bytes);
  return 0;
}

int zero(Context* context, void* memory, std::uint64_t bytes) {
  const Open open(context);
  std::memset(memory, 0, bytes);
  return 0;
}

int stage(Context* context, const void* host, std::uint64_t bytes, const void** out) {
  const auto* begin = static_cast<const std::byte*>(host);
  context->staged.assign(begin, begin + bytes);
  *out = context->staged.data();
  return 0;
}

int accumulate(Context* context, const OktopkCudaPass* pass) {
  const Open open(context);
  for (std::uint64_t i = 0; i < pass->n; ++i) pass->acc[i] = accumulated(*pass, i);
  return 0;
}

int accumulate_select(Context* context, const OktopkCudaPass* pass, std::uint32_t bound, std::uint64_t most,
                      OktopkCudaEntries* out) {
  accumulate(context, pass);
  const Open open(context);
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < pass->n; ++i)
    if (magnitude(pass->acc[i]) >= bound) chosen.push_back(i);
  out->reached = chosen.size();
  if (chosen.size() > most) {
    std::stable_sort(chosen.begin(), chosen.end(), [&](std::uint32_t a, std::uint32_t b) {
      return magnitude(pass->acc[a]) > magnitude(pass->acc[b]);
    });
    chosen.resize(most);
    std::sort(chosen.begin(), chosen.end());
  }
  context->idx = chosen;
  context->val.clear();
  for (const std::uint32_t i : chosen) context->val.push_back(pass->acc[i]);
  out->count = chosen.size();
  out->idx = context->idx.data();
  out->val = context->val.data();
  return 0;
}

int multiply(Context* context, float* x, std::uint64_t n, float factor) {
  const Open open(context);
  for (std::uint64_t i = 0; i < n; ++i) x[i] *= factor;
  return 0;
}

int first_nonfinite(Context* context, const void* x, std::uint32_t type, std::uint64_t n, std::uint64_t* out) {
  const Open open(context);
  for (*out = 0; *out < n && std::isfinite(widen(x, type, *out));) ++*out;
  return 0;
}

int magnitude_histogram(Context* context, const float* x, std::uint64_t n, std::uint64_t* bins) {
  const Open open(context);
  for (std::uint64_t i = 0; i < n; ++i)
    if (magnitude(x[i]) != 0) ++bins[magnitude(x[i]) >> 18U];
  return 0;
}

int sample_magnitudes(Context* context, const OktopkCudaPass* pass, std::uint64_t offset, std::uint64_t stride,
                      std::uint64_t clusters, std::uint32_t* out) {
  const Open open(context);
  for (std::uint64_t t = 0; t < 4 * clusters; ++t) {
    const std::uint64_t i = offset + t / 4 * stride + t % 4;
    out[t] = i < pass->n ? magnitude(accumulated(*pass, i)) : 0xffffffffU;
  }
  return 0;
}

int moments(Context* context, const float* x, std::uint64_t n, double* sums, double* squares) {
  const Open open(context);
  const std::uint64_t lanes = (n + 65535) / 65536 * 16;
  std::fill_n(sums, lanes, 0.0);
  std::fill_n(squares, lanes, 0.0);
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t lane = i / 65536 * 16 + i % 16;
    sums[lane] += x[i];
    squares[lane] += double{x[i]} * double{x[i]};
  }
  return 0;
}

int add_at(Context* context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
           std::uint64_t count) {
  const Open open(context);
  for (std::uint64_t i = 0; i < count; ++i) x[idx[i] - base] += val[i];
  return 0;
}

int clear_at(Context* context, float* x, std::uint32_t base, const std::uint32_t* idx, std::uint64_t count) {
  const Open open(context);
  for (std::uint64_t i = 0; i < count; ++i) x[idx[i] - base] = 0;
  return 0;
}

int add_take(Context* context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
             std::uint64_t count, std::uint32_t take, float* sums, float* before) {
  const Open open(context);
  for (std::uint64_t i = 0; i < count; ++i) {
    float& place = x[idx[i] - base];
    if (before != nullptr) before[i] = place;
    if (val != nullptr) place += val[i];
    sums[i] = place;
    if (magnitude(place) >= take) place = 0;
  }
  return 0;
}

const OktopkCudaApi kApi = {.version = OKTOPK_CUDA_API_VERSION,
                            .device_count = device_count,
                            .open = open,
                            .close = close,
                            .error_text = error_text,
                            .describe = describe,
                            .set_stream = set_stream,
                            .allocate = allocate,
                            .release = release,
                            .locate = locate,
                            .copy = copy,
                            .zero = zero,
                            .stage = stage,
                            .accumulate = accumulate,
                            .accumulate_select = accumulate_select,
                            .multiply = multiply,
                            .first_nonfinite = first_nonfinite,
                            .magnitude_histogram = magnitude_histogram,
                            .sample_magnitudes = sample_magnitudes,
                            .moments = moments,
                            .add_at = add_at,
                            .clear_at = clear_at,
                            .add_take = add_take};

}  // namespace

extern "C" const OktopkCudaApi* oktopk_cuda_api(void) { return &kApi; }
// The changes of stream so far.
extern "C" __attribute__((visibility("default"))) int fake_cuda_streams_seen(void) { return streams_seen; }
