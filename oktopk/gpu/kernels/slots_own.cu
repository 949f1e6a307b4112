// SPDX-License-Identifier: Apache-2.0
// K2 of preset `slots`, the pass over the owner's places. A block of threads has 4096 places in shared memory, adds the
// P messages' entries for them in rank order, and lists what reaches the global threshold. All entries of 32 ranks are
// loaded at once, before the additions begin, so the number of ranks costs barriers but no waits for memory.
// COST: 8 B per place; 4 B per entry that arrives, 4 B per entry that leaves.
#include <cuda_pipeline.h>

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/slots.cuh"
#include "oktopk/gpu/kernels/slots_entries.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

static_assert(kBlock == kTileElements);

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
__global__ void __launch_bounds__(kThreads, 6) own_kernel(Deal deal, float* memory, SlotsState* state, Messages in,
                                                       const std::uint32_t* starts, std::uint32_t* checks, Lists out) {
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

}  // namespace

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

}  // namespace oktopk::cuda
