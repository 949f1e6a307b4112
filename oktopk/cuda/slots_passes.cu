// SPDX-License-Identifier: Apache-2.0
// The three passes of preset `slots`: K1 over n, K2 over the owner's places, K3 over n. K1 and K2 write the entries of
// each block of 4096 places to a list of its own; slots_messages.cu makes messages of them.
// COST: 12 B per element (K1), 8 B per place (K2), 4 B per element (K3); 4 B per entry.
#include <type_traits>

#include "oktopk/cuda/elements.cuh"
#include "oktopk/cuda/slots.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

static_assert(kBlock == kTileElements);
constexpr std::uint32_t kInfinity = 0x7f800000U;

// The first element of this thread in each row of block (q, b). A row is 1024 places: four tiles, 64 threads each.
struct Rows {
  std::uint64_t first;
  std::uint64_t stride;

  __device__ Rows(const Deal& deal, std::uint32_t q, std::uint32_t b)
      : first(deal.index(q, std::uint64_t{b} * kBlock + 4 * threadIdx.x)), stride(std::uint64_t{kRow} * deal.P) {}
  __device__ std::uint64_t operator[](unsigned r) const { return first + r * stride; }
};

// Writes the marked entries to the list of block `at`; x's home gets what stays of them by store(row, i, rest).
template <class Store>
__device__ inline void take_out(const float (&x)[kRows][4], std::uint32_t marks, std::size_t at, const Lists& out,
                                const Store& store) {
  const uint2 list = compact(
      marks, [](std::uint32_t) { return 0U; },
      [&](std::uint32_t place, unsigned r, unsigned i) {
        if (place >= kMostOfBlock) return;
        const std::uint32_t entry = entry_of(r * kRow + 4 * threadIdx.x + i, __float_as_uint(x[r][i]));
        out.entries[at * kMostOfBlock + place] = entry;
        store(r, i, __fsub_rn(x[r][i], value_in(entry)));
      });
  if (threadIdx.x == 0) out.counts[at] = static_cast<std::uint16_t>(min(list.y, kMostOfBlock));
}

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
  float x[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(acc, rows[r], deal.n, x[r]);
  if (gradient != nullptr) {
    float g[kRows][4];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(gradient, rows[r], deal.n, g[r]);
    add_finite(x, g, scale, state);
  }
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) store_four<kVector>(acc, rows[r], deal.n, x[r]);
  if (kAddsOnly) return;
  take_out(x, marks_of(x, __uint_as_float(state->local_bound)), std::size_t{q} * deal.blocks + b, out,
           [&](unsigned r, unsigned i, float rest) { acc[rows[r] + i] = rest; });
}

// ---- K2 ----

// Counts the magnitudes in the two steps of the tail below the threshold.
__device__ inline void count_below(const float (&x)[kRows][4], std::uint32_t bound, std::uint32_t* tail) {
  static_assert(kStepsDown == 2);
  const float limits[3] = {__uint_as_float(bound > 2 * kQuarterOctave ? bound - 2 * kQuarterOctave : 1),
                           __uint_as_float(bound > kQuarterOctave ? bound - kQuarterOctave : 1),
                           __uint_as_float(bound)};
  std::uint32_t reached[3] = {};
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
#pragma unroll
      for (unsigned j = 0; j < 3; ++j)
        if (fabsf(x[r][i]) >= limits[j]) ++reached[j];
  // At most 512 in a warp.
  std::uint32_t near = (reached[0] - reached[1]) | (reached[1] - reached[2]) << 16;
  near = __reduce_add_sync(kAllLanes, near);
  if (threadIdx.x % 32 != 0) return;
  if ((near & 0xffffU) != 0) atomicAdd(tail, near & 0xffffU);
  if (near >> 16 != 0) atomicAdd(tail + 1, near >> 16);
}

// Adds what arrived to the block's memory, in rank order, unless kTakesOnly; takes what reaches the global threshold
// unless kAddsOnly.
template <bool kAddsOnly, bool kTakesOnly>
__global__ void __launch_bounds__(kThreads) own_kernel(Deal deal, float* memory, SlotsState* state, Messages in,
                                                       const std::uint32_t* starts, std::uint32_t* checks, Lists out) {
  __shared__ float sums[kBlock];
  const std::uint32_t b = blockIdx.x;
  float* mine = memory + std::uint64_t{b} * kBlock + 4 * threadIdx.x;
  const bool is_sound = state->bad == 0 && state->wrong == kNoFault;
  float x[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_vector(mine + r * kRow, x[r]);
  if (!kTakesOnly && is_sound) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
      *reinterpret_cast<float4*>(sums + r * kRow + 4 * threadIdx.x) = make_float4(x[r][0], x[r][1], x[r][2], x[r][3]);
    __syncthreads();
    for (std::uint32_t q = 0; q < deal.P; ++q) {
      const std::uint32_t start = starts[std::size_t{q} * deal.blocks + b];
      const std::uint32_t* entries = in.entries(q) + start;
      std::uint32_t check = 0;
      for (std::uint32_t i = threadIdx.x; i < in.count(q)[b]; i += kThreads) {
        const std::uint32_t entry = entries[i];
        float& sum = sums[place_of(entry)];
        sum = __fadd_rn(sum, value_in(entry));
        check += check_of(entry, deal.blocks + start + i);
      }
      check = __reduce_add_sync(kAllLanes, check);
      if (threadIdx.x % 32 == 0 && check != 0) atomicAdd(checks + q, check);
      __syncthreads();
    }
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) load_vector(sums + r * kRow + 4 * threadIdx.x, x[r]);
  }
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
    *reinterpret_cast<float4*>(mine + r * kRow) = make_float4(x[r][0], x[r][1], x[r][2], x[r][3]);
  if (kAddsOnly) return;
  const std::uint32_t bound = state->global_bound;
  count_below(x, bound, state->tail);
  take_out(x, is_sound ? marks_of(x, __uint_as_float(bound)) : 0, b, out,
           [&](unsigned r, unsigned i, float rest) { mine[r * kRow + i] = rest; });
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
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
    *reinterpret_cast<float4*>(values + r * kRow + 4 * threadIdx.x) = make_float4(fill, fill, fill, fill);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads)
    values[place_of(entries[i])] = __fdiv_rn(value_in(entries[i]), divisor);
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

void run_own(OktopkCudaContext& context, const OktopkCudaSlots& slots, OwnPass what, const Messages& in,
             const Lists& out) {
  const auto kernel = what == OwnPass::both        ? own_kernel<false, false>
                      : what == OwnPass::adds_only ? own_kernel<true, false>
                                                   : own_kernel<false, true>;
  kernel<<<slots.deal.blocks, kThreads, 0, context.stream>>>(slots.deal, slots.memory.get<float>(), slots.state(), in,
                                                             slots.starts.get<std::uint32_t>(),
                                                             slots.checks.get<std::uint32_t>(), out);
  check_launch("own_kernel");
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
