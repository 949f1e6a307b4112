// SPDX-License-Identifier: Apache-2.0
// The passes of preset `slots` over n: K1 and K3; slots_own.cu has K2. K1 writes the entries of each block of 4096
// places to a list of its own; slots_messages.cu makes messages of them. COST: 12 B per element (K1), 4 B per element
// (K3); 4 B per entry.
#include <type_traits>

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/slots.cuh"
#include "oktopk/gpu/kernels/slots_entries.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

static_assert(kBlock == kTileElements);

// The first element of this thread in each row of block (q, b). A row is 1024 places: four tiles, 64 threads each.
struct Rows {
  std::uint64_t first;
  std::uint64_t stride;

  __device__ Rows(const Deal& deal, std::uint32_t q, std::uint32_t b)
      : first(deal.index(q, std::uint64_t{b} * kBlock + 4 * threadIdx.x)), stride(std::uint64_t{kRow} * deal.P) {}
  __device__ std::uint64_t operator[](unsigned r) const { return first + r * stride; }
};

// ---- K1 ----

// x += scale * g. A sum that is not finite is not made: its element keeps its value.
__device__ inline void add_finite(float (&x)[kRows][4], float (&g)[kRows][4], float scale, SlotsState* state) {
  std::uint32_t largest = 0;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      g[r][i] = __fadd_rn(x[r][i], __fmul_rn(scale, g[r][i]));
      largest = max(largest, magnitude_bits(g[r][i]));
    }
  const bool is_bad = largest >= kInfinity;
  if (is_bad) state->bad = 1;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (!is_bad || magnitude_bits(g[r][i]) < kInfinity) x[r][i] = g[r][i];
}

// Adds the gradient, and takes out what reaches the local threshold unless kAddsOnly.
template <class G, bool kAddsOnly, bool kVector>
__global__ void __launch_bounds__(kThreads) send_kernel(Deal deal, std::uint64_t first_tile, float* acc,
                                                        const G* gradient, float scale, SlotsState* state, Lists out) {
  const auto at = static_cast<std::uint32_t>(first_tile) + blockIdx.x;
  const std::uint32_t q = at % deal.P;
  const std::uint32_t b = at / deal.P;
  const Rows rows(deal, q, b);
  const float bound = __uint_as_float(state->local_bound);
  float x[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(acc, rows[r], deal.n, x[r]);
  if (gradient != nullptr) {
    float g[kRows][4];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(gradient, rows[r], deal.n, g[r]);
    add_finite(x, g, scale, state);
  }
  const std::uint32_t marks = kAddsOnly ? 0 : marks_of(x, bound);
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    float rest[4];
    without(x[r], marks >> (4 * r), rest);
    store_four<kVector>(acc, rows[r], deal.n, rest);
  }
  if (kAddsOnly) return;
  list_entries(x, marks, std::size_t{q} * deal.blocks + b, out,
               [&](unsigned r, unsigned i) { acc[rows[r] + i] = x[r][i]; });
}

// ---- K3 ----

__device__ inline void put_one(float* x, float v) { *x = v; }
__device__ inline void put_one(__nv_bfloat16* x, float v) { *x = __float2bfloat16_rn(v); }
__device__ inline void put_one(__half* x, float v) { *x = __float2half_rn(v); }

__device__ inline void put_four(float* x, const float* v) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(v);
}
template <class Half>
__device__ inline void put_four(Half* x, const float* v) {
  union {
    uint2 word;
    Half half[4];
  } to;
  for (int i = 0; i < 4; ++i) put_one(to.half + i, v[i]);
  *reinterpret_cast<uint2*>(x) = to.word;
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(Deal deal, std::uint64_t first_tile, const SlotsState* state, Messages in, const std::uint32_t* starts,
                 float divisor, T* out) {
  __shared__ float values[kBlock];
  const auto at = static_cast<std::uint32_t>(first_tile) + blockIdx.x;
  const std::uint32_t q = at % deal.P;
  const std::uint32_t b = at / deal.P;
  const Rows rows(deal, q, b);
  const bool is_sound = state->bad == 0 && state->wrong == kNoFault;
  const float fill = is_sound ? 0.0F : __uint_as_float(0x7fc00000U);
  const std::uint32_t count = is_sound ? in.count(q)[b] : 0;
  const std::uint32_t* entries = in.entries(q) + starts[std::size_t{q} * deal.blocks + b];
  std::uint32_t entry = threadIdx.x < count ? entries[threadIdx.x] : 0;  // on its way while zeros are written
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
    *reinterpret_cast<float4*>(values + r * kRow + 4 * threadIdx.x) = make_float4(fill, fill, fill, fill);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    if (i >= kThreads) entry = entries[i];
    values[place_of(entry)] = __fdiv_rn(value_in(entry), divisor);
  }
  __syncthreads();
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    const float* v = values + r * kRow + 4 * threadIdx.x;
    if constexpr (kVector)
      put_four(out + rows[r], v);
    else
      for (unsigned i = 0; i < 4; ++i)
        if (rows[r] + i < deal.n) put_one(out + rows[r] + i, v[i]);
  }
}

// Blocks of all owners, those of the same number side by side; only the last number may have places from n on.
std::uint64_t all_blocks(const Deal& deal) { return std::uint64_t{deal.P} * deal.blocks; }
std::uint64_t whole_blocks(const Deal& deal) { return deal.n / (std::uint64_t{deal.P} * kBlock) * deal.P; }

}  // namespace

void run_send(OktopkCudaContext& context, const OktopkCudaSlots& slots, const SendPass& send, const Lists& out) {
  const OktopkCudaPass& pass = send.pass;
  for_type(pass.gradient_type, [&](const auto* type) {
    using G = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    const auto* gradient = static_cast<const G*>(pass.gradient);
    const bool is_fast = is_aligned(pass.acc, 16) && is_aligned(gradient, 4 * sizeof(G));
    const auto launch = [&](auto kernel, std::uint64_t first, unsigned number) {
      kernel<<<number, kThreads, 0, context.stream>>>(slots.deal, first, pass.acc, gradient, pass.scale, slots.state(),
                                                      out);
    };
    launch_tiles(is_fast ? whole_blocks(slots.deal) : 0, all_blocks(slots.deal),
                 send.adds_only ? send_kernel<G, true, true> : send_kernel<G, false, true>,
                 send.adds_only ? send_kernel<G, true, false> : send_kernel<G, false, false>, launch);
    check_launch("send_kernel");
  });
}

void run_apply(OktopkCudaContext& context, const OktopkCudaSlots& slots, const Messages& in, float divisor, void* out,
               std::uint32_t type) {
  for_type(type, [&](const auto* t) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(t)>>;
    const auto launch = [&](auto kernel, std::uint64_t first, unsigned number) {
      kernel<<<number, kThreads, 0, context.stream>>>(slots.deal, first, slots.state(), in,
                                                      slots.starts.get<std::uint32_t>(), divisor, static_cast<T*>(out));
    };
    launch_tiles(is_aligned(out, 4 * sizeof(T)) ? whole_blocks(slots.deal) : 0, all_blocks(slots.deal),
                 apply_kernel<T, true>, apply_kernel<T, false>, launch);
    check_launch("apply_kernel");
  });
}

}  // namespace oktopk::cuda
