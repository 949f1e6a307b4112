// SPDX-License-Identifier: Apache-2.0
// The passes of preset `slots`: K1 and K3 over n, K2 over the owner's places. K1 and K2 write the entries of each block
// of 4096 places to a list of its own, and the block keeps their rounding errors; slots_messages.cu makes messages of
// the lists.
// COST: 12 B per element (K1), 8 B per place (K2), 4 B per element (K3); 4 B per entry that arrives or leaves.
#include <cuda_pipeline.h>

#include <type_traits>

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/slots.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

static_assert(kBlock == kTileElements);

// ---- Entries that leave a block (K1 and K2) ----

// The value that travels for x.
__device__ inline float travelling(float x) { return __uint_as_float(float_bits_of(value_of(__float_as_uint(x)))); }

// Four elements of which the marked ones leave: their rounding errors stay.
__device__ inline void without(const float (&x)[4], std::uint32_t marks, float (&out)[4]) {
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) out[i] = (marks >> i & 1U) != 0 ? __fsub_rn(x[i], travelling(x[i])) : x[i];
}

// Writes the marked entries to the list of block `at`. Entries that one step may not send go back by put_back(row, i).
template <class PutBack>
__device__ inline void list_entries(const float (&x)[kRows][4], std::uint32_t marks, std::size_t at, const Lists& out,
                                    const PutBack& put_back) {
  const uint2 list = compact(
      marks, [](std::uint32_t) { return 0U; },
      [&](std::uint32_t place, unsigned r, unsigned i) {
        if (place >= kMostOfBlock) return put_back(r, i);
        out.entries[at * kMostOfBlock + place] = entry_of(r * kRow + 4 * threadIdx.x + i, __float_as_uint(x[r][i]));
      });
  if (threadIdx.x == 0) out.counts[at] = static_cast<std::uint16_t>(min(list.y, kMostOfBlock));
}

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

// ---- K2 ----
//
// A block of threads has 4096 places in shared memory, adds the P messages' entries for them in rank order, and lists
// what reaches the global threshold. All entries of 32 ranks are loaded at once, before the additions begin, so the
// number of ranks costs barriers but no waits for memory.

// The parts of up to 32 messages that are about one block of places. Each lane of a warp has one message, all warps
// have the same.
struct Parts {
  std::uint32_t number = 0;  // entries
  std::uint32_t start = 0;   // the first one's place in its message
  std::uint32_t before = 0;  // entries of the messages before it
  std::uint32_t total = 0;   // of all of them

  __device__ Parts(const Deal& deal, const Messages& in, const std::uint32_t* starts, std::uint32_t q,
                   std::uint32_t b) {
    if (q < deal.P) number = in.count(q)[b], start = starts[std::size_t{q} * deal.blocks + b];
    std::uint32_t sum = number;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (threadIdx.x % 32 >= step) sum += other;
    }
    before = sum - number;
    total = __shfl_sync(kAllLanes, sum, 31);
  }
  // The lane that has entry i of them all.
  __device__ unsigned lane_of(std::uint32_t i) const {
    unsigned lane = 0;
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2)
      if (__shfl_sync(kAllLanes, before, lane + step) <= i) lane += step;
    return lane;
  }
  // The lanes that have any of the entries from `begin` to `end`.
  __device__ unsigned lanes_of(std::uint32_t begin, std::uint32_t end) const {
    return __ballot_sync(kAllLanes, number > 0 && before < end && before + number > begin);
  }
};

constexpr unsigned kAhead = 4;  // entries that a thread loads before it adds the first
constexpr unsigned kRound = kAhead * kThreads;

// Adds what arrived for block b to `sums`, in rank order, and returns the thread's part of its check. Places of one
// rank differ, so only ranks are kept apart: a barrier comes before each. `sums` may still be on its way (cp.async).
__device__ inline std::uint32_t add_arrived(const Deal& deal, const Messages& in, const std::uint32_t* starts,
                                            std::uint32_t b, float* sums) {
  std::uint32_t check = 0;
  for (std::uint32_t first = 0; first < deal.P; first += 32) {
    const Parts parts(deal, in, starts, first + threadIdx.x % 32, b);
    for (std::uint32_t begin = 0; begin < parts.total; begin += kRound) {
      std::uint32_t entries[kAhead];
      unsigned lanes[kAhead];
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) {
        lanes[j] = 32;  // none
        entries[j] = 0;
        if (begin + j * kThreads >= parts.total) continue;
        const std::uint32_t i = begin + j * kThreads + threadIdx.x;
        const unsigned lane = parts.lane_of(i);
        const std::uint32_t at = __shfl_sync(kAllLanes, parts.start - parts.before, lane) + i;
        if (i >= parts.total) continue;
        lanes[j] = lane;
        entries[j] = in.entries(first + lane)[at];
        check += check_of(entries[j], deal.blocks + at);
      }
      __pipeline_wait_prior(0);
      for (unsigned todo = parts.lanes_of(begin, begin + kRound); todo != 0; todo &= todo - 1) {
        const unsigned now = __ffs(static_cast<int>(todo)) - 1;
        __syncthreads();
#pragma unroll
        for (unsigned j = 0; j < kAhead; ++j)
          if (lanes[j] == now) {
            float& sum = sums[place_of(entries[j])];
            sum = __fadd_rn(sum, value_in(entries[j]));
          }
      }
    }
  }
  return check;
}

// The magnitudes in each of the two steps of the tail below the threshold, in halves of a word.
__device__ inline std::uint32_t count_below(const float (&x)[kRows][4], std::uint32_t bound) {
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
  return (reached[0] - reached[1]) | (reached[1] - reached[2]) << 16;
}

__device__ inline bool all_finite(const float (&x)[kRows][4]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(x[r][i]));
  return largest < kInfinity;
}

// Sums of a block of threads. Atomic additions of all warps to one word of GPU memory would take longer than the pass.
struct BlockSums {
  std::uint32_t check;  // of the entries that arrived
  std::uint32_t below;  // as count_below() has it; at most 4096 in each half
};

// Adds what arrived to the block's memory unless kTakesOnly; takes what reaches the global threshold unless kAddsOnly.
template <bool kAddsOnly, bool kTakesOnly>
__global__ void __launch_bounds__(kThreads, 6)
    own_kernel(Deal deal, float* memory, SlotsState* state, Messages in, const std::uint32_t* starts,
               std::uint32_t* checks, Lists out) {
  alignas(16) __shared__ float sums[kBlock];
  __shared__ BlockSums all;
  const std::uint32_t b = blockIdx.x;
  float* mine = memory + std::uint64_t{b} * kBlock + 4 * threadIdx.x;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
    __pipeline_memcpy_async(sums + r * kRow + 4 * threadIdx.x, mine + r * kRow, sizeof(float4));
  __pipeline_commit();
  if (threadIdx.x == 0) all.check = all.below = 0;
  // Another block may just find an overflow: all threads of a block see it or none.
  const bool is_sound = __syncthreads_and(state->bad == 0 && state->wrong == kNoFault) != 0;
  const std::uint32_t bound = state->global_bound;
  std::uint32_t check = !kTakesOnly && is_sound ? add_arrived(deal, in, starts, b, sums) : 0;
  __pipeline_wait_prior(0);
  __syncthreads();
  float x[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_vector(sums + r * kRow + 4 * threadIdx.x, x[r]);
  const std::uint32_t marks = kAddsOnly || !is_sound ? 0 : marks_of(x, __uint_as_float(bound));
  if (marks != 0 && !all_finite(x)) atomicMax(&state->wrong, std::uint32_t{kSumOverflow});
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    float rest[4];
    without(x[r], marks >> (4 * r), rest);
    *reinterpret_cast<float4*>(mine + r * kRow) = make_float4(rest[0], rest[1], rest[2], rest[3]);
  }
  check = __reduce_add_sync(kAllLanes, check);
  const std::uint32_t below = __reduce_add_sync(kAllLanes, kAddsOnly ? 0 : count_below(x, bound));
  if (threadIdx.x % 32 == 0) {
    if (check != 0) atomicAdd(&all.check, check);
    if (below != 0) atomicAdd(&all.below, below);
  }
  if (kAddsOnly)
    __syncthreads();
  else
    list_entries(x, marks, b, out, [&](unsigned r, unsigned i) { mine[r * kRow + i] = x[r][i]; });
  if (threadIdx.x != 0) return;
  if (all.check != 0) atomicAdd(checks + b % deal.P, all.check);
  if ((all.below & 0xffffU) != 0) atomicAdd(state->tail, all.below & 0xffffU);
  if (all.below >> 16 != 0) atomicAdd(state->tail + 1, all.below >> 16);
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

void run_own(OktopkCudaContext& context, const OktopkCudaSlots& slots, OwnPass what, const Messages& in,
             const Lists& out) {
  const auto kernel = what == OwnPass::both        ? own_kernel<false, false>
                      : what == OwnPass::adds_only ? own_kernel<true, false>
                                                   : own_kernel<false, true>;
  kernel<<<slots.deal.blocks, kThreads, 0, context.stream>>>(slots.deal, slots.memory, slots.state(), in,
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
