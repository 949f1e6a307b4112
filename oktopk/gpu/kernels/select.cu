// SPDX-License-Identifier: Apache-2.0
// Accumulate, and accumulate and select on the GPU: one pass over n, then O(k) work that puts the entries in order.
//
// A block takes a tile of 4096 elements. It adds the gradient, writes the accumulator back, and appends the tile's
// entries, in index order, to a list; one atomic addition per tile reserves their place, so no block waits for another.
// A second kernel adds up the tiles' counts and copies the entries to their places. That costs 14 B per entry more than
// a chain of look-backs in the pass would, and no waiting: at 1% density 1% of the pass.
// Results depend on no order of blocks.
//
// The largest `most` of these entries: three rounds of a radix selection over the entries' magnitudes find the k-th;
// among entries equal to it the lowest indices stay.
//
// COST: 12 B per element with a gradient in fp32, 10 B in 16 bits, 4 B without one; about 22 B per entry.
#include <algorithm>
#include <cub/block/block_scan.cuh>
#include <type_traits>
#include <utility>

#include "oktopk/gpu/kernels/context.cuh"
#include "oktopk/gpu/kernels/elements.cuh"

namespace oktopk::cuda {
namespace {

// ---- The pass over n ----

// The entries that reach the bound: two parallel lists, tile by tile. An index is an offset in its tile.
struct Staging {
  std::uint16_t* offset;
  float* val;
  uint2* tile;            // of each tile: its begin in the lists, and its count
  std::uint64_t* counts;  // of each tile, in the upper half: what the scan adds up
  SelectionState* state;
  std::uint32_t room;
};

template <class G>
struct PassInput {
  float* acc;
  std::uint64_t n;
  const G* gradient;
  float scale;
  const std::uint32_t* cleared;
  const std::uint32_t* starts;  // of each tile in `cleared`, and the end; null: nothing is cleared
  std::uint32_t bound;
};

// The bits of the tile's elements that count as zero. Every thread of the block calls it.
__device__ inline void mark_cleared(const std::uint32_t* cleared, std::uint32_t begin, std::uint32_t end,
                                    std::uint32_t* bits) {
  if (threadIdx.x < kTileElements / 32) bits[threadIdx.x] = 0;
  __syncthreads();
  for (std::uint32_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const std::uint32_t offset = cleared[i] % kTileElements;
    atomicOr(bits + offset / 32, 1U << (offset % 32));
  }
  __syncthreads();
}

// Appends the tile's elements x that reach the bound to the lists.
__device__ inline void append(const float (&x)[kRows][4], std::uint32_t bound, std::uint64_t tile, const Staging& out) {
  const std::uint32_t marks = marks_of(x, __uint_as_float(bound));
  const auto reserve = [&](std::uint32_t number) {
    const std::uint32_t begin = number == 0 ? 0 : atomicAdd(&out.state->reached, number);
    return begin + number <= out.room && begin + number >= begin ? begin : kAllLanes;
  };
  const uint2 list = compact(marks, reserve, [&](std::uint32_t at, unsigned r, unsigned i) {
    out.offset[at] = static_cast<std::uint16_t>(r * kRow + 4 * threadIdx.x + i);
    out.val[at] = x[r][i];
  });
  if (threadIdx.x != 0) return;
  out.tile[tile] = list;
  out.counts[tile] = std::uint64_t{list.y} << 32;
}

template <class G, bool kAdds, bool kSelects, bool kVector>
__global__ void __launch_bounds__(kThreads) pass_kernel(PassInput<G> in, std::uint64_t first_tile, Staging out) {
  __shared__ std::uint32_t cleared_bits[kTileElements / 32];
  const std::uint64_t tile = first_tile + blockIdx.x;
  const std::uint64_t first = tile * kTileElements + 4 * threadIdx.x;
  float x[kRows][4];
  float g[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(in.acc, first + r * kRow, in.n, x[r]);
  if (kAdds) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(in.gradient, first + r * kRow, in.n, g[r]);
  }
  const std::uint32_t clear_begin = in.starts == nullptr ? 0 : in.starts[tile];
  const std::uint32_t clear_end = in.starts == nullptr ? 0 : in.starts[tile + 1];
  if (clear_begin < clear_end) {
    mark_cleared(in.cleared, clear_begin, clear_end, cleared_bits);
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      const std::uint32_t bits = cleared_bits[(r * kRow + 4 * threadIdx.x) / 32] >> (4 * threadIdx.x % 32);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) x[r][i] = (bits >> i & 1U) != 0 ? 0.0F : x[r][i];
    }
  }
  if (kAdds) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) x[r][i] = __fadd_rn(x[r][i], __fmul_rn(in.scale, g[r][i]));
  }
  if (kAdds || clear_begin < clear_end) {
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) store_four<kVector>(in.acc, first + r * kRow, in.n, x[r]);
  }
  if (kSelects) append(x, in.bound, tile, out);
}

// starts[t]: how many of the increasing indices lie before tile t.
__global__ void start_tiles(const std::uint32_t* idx, std::uint32_t count, std::uint32_t tiles, std::uint32_t* starts) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > count) return;
  const std::uint32_t from = i == 0 ? 0 : idx[i - 1] / kTileElements + 1;
  const std::uint32_t to = i == count ? tiles : idx[i] / kTileElements;
  for (std::uint32_t t = from; t <= to; ++t) starts[t] = i;
}

template <class G, bool kAdds, bool kSelects>
void launch_pass(OktopkCudaContext& context, const PassInput<G>& in, const Staging& out) {
  const bool is_fast = is_aligned(in.acc, 16) && is_aligned(in.gradient, 4 * sizeof(G));
  const auto launch = [&](auto kernel, std::uint64_t first, unsigned number) {
    kernel<<<number, kThreads, 0, context.stream>>>(in, first, out);
  };
  launch_tiles(is_fast ? in.n / kTileElements : 0, blocks_for(in.n, kTileElements),
               pass_kernel<G, kAdds, kSelects, true>, pass_kernel<G, kAdds, kSelects, false>, launch);
  check_launch("pass_kernel");
}

// Uploads the indices and finds each tile's part of them; returns both.
std::pair<const std::uint32_t*, const std::uint32_t*> cleared_tiles(OktopkCudaContext& context,
                                                                    const OktopkCudaPass& pass) {
  if (pass.cleared_count == 0) return {nullptr, nullptr};
  const auto count = static_cast<std::uint32_t>(pass.cleared_count);
  const std::uint32_t tiles = blocks_for(pass.n, kTileElements);
  auto* idx = context.cleared.at_least<std::uint32_t>(std::size_t{count} + tiles + 1);
  std::uint32_t* starts = idx + count;
  send(context, idx, pass.cleared, count);
  start_tiles<<<blocks_for(std::uint64_t{count} + 1, 256), 256, 0, context.stream>>>(idx, count, tiles, starts);
  check_launch("start_tiles");
  return {idx, starts};
}

template <bool kSelects>
void run_pass(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint32_t bound, const Staging& out) {
  const auto [cleared, starts] = cleared_tiles(context, pass);
  begin_timing(context);
  if (kSelects) OKTOPK_CUDA(cudaMemsetAsync(out.state, 0, sizeof(SelectionState), context.stream));
  if (pass.gradient == nullptr) {
    launch_pass<float, false, kSelects>(context, {pass.acc, pass.n, nullptr, 0, cleared, starts, bound}, out);
    return;
  }
  for_type(pass.gradient_type, [&, cleared = cleared, starts = starts](const auto* type) {
    using G = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    const PassInput<G> in{pass.acc, pass.n, static_cast<const G*>(pass.gradient), pass.scale, cleared, starts, bound};
    launch_pass<G, true, kSelects>(context, in, out);
  });
}

// ---- The k-th magnitude ----

__device__ inline std::uint32_t stored(const SelectionState& state, std::uint32_t room) {
  return min(state.reached, room);
}

// Counts the next digit of the magnitudes whose leading digits are the prefix.
template <unsigned kShift, unsigned kBits>
__global__ void count_digits(const float* val, std::uint32_t room, SelectionState* state) {
  constexpr unsigned kDigits = 1U << kBits;
  __shared__ std::uint32_t digits[kDigits];
  if (state->remaining == 0) return;
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x) digits[d] = 0;
  __syncthreads();
  const std::uint32_t count = stored(*state, room);
  const std::uint32_t prefix = state->prefix;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const std::uint32_t m = magnitude_bits(val[i]);
    if (m >> (kShift + kBits) == prefix) atomicAdd(digits + (m >> kShift & (kDigits - 1)), 1U);
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < kDigits; d += blockDim.x)
    if (digits[d] != 0) atomicAdd(state->digits + d, digits[d]);
}

// Finds the digit of the k-th magnitude. One block.
template <unsigned kBits, bool kLast>
__global__ void __launch_bounds__(1024) find_digit(SelectionState* state) {
  constexpr unsigned kDigits = 1U << kBits;
  constexpr unsigned kPerThread = kDigits / 1024;
  using Scan = cub::BlockScan<std::uint32_t, 1024>;
  __shared__ typename Scan::TempStorage memory;
  const std::uint32_t wanted = state->remaining;
  if (wanted == 0) return;
  // From the largest digit down.
  std::uint32_t own[kPerThread];
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < kPerThread; ++i) sum += own[i] = state->digits[kDigits - 1 - (threadIdx.x * kPerThread + i)];
  std::uint32_t above = 0;
  Scan(memory).ExclusiveSum(sum, above);
  for (unsigned i = 0; i < kPerThread; ++i) {
    const std::uint32_t digit = kDigits - 1 - (threadIdx.x * kPerThread + i);
    if (above < wanted && wanted <= above + own[i]) {
      state->prefix = state->prefix << kBits | digit;
      state->remaining = wanted - above;
      if (kLast) state->kth = state->prefix, state->ties = state->remaining;
    }
    above += own[i];
    state->digits[digit] = 0;
  }
}

__global__ void set_reached(std::uint32_t reached, SelectionState* state) { state->reached = reached; }

__global__ void begin_kth(std::uint32_t most, SelectionState* state) {
  state->remaining = state->reached > most ? most : 0;
}

// One warp per tile: how many of its entries are above the k-th magnitude (upper half), and how many equal it.
__global__ void count_kept(Staging in, std::uint32_t tiles) {
  const std::uint32_t tile = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (tile >= tiles) return;
  const unsigned lane = threadIdx.x % 32;
  const uint2 list = in.tile[tile];
  const std::uint32_t kth = in.state->kth;
  std::uint32_t above = 0, equal = 0;
  for (std::uint32_t i = lane; i < list.y; i += 32) {
    const std::uint32_t m = magnitude_bits(in.val[list.x + i]);
    above += m > kth ? 1U : 0U;
    equal += m == kth ? 1U : 0U;
  }
  above = __reduce_add_sync(kAllLanes, above);
  equal = __reduce_add_sync(kAllLanes, equal);
  if (lane == 0) in.counts[tile] = std::uint64_t{above} << 32 | equal;
}

// ---- The result ----

constexpr unsigned kOrderThreads = 512;
static_assert(kMostBlocks <= kOrderThreads);  // a thread waits for each block before its own

// How many entries of block b's tiles are above the k-th magnitude, and how many equal it. `above` comes last, with a
// mark, so that who sees the mark sees both.
__device__ inline void publish(SelectionState* state, unsigned b, std::uint64_t counts) {
  state->equal[b] = static_cast<std::uint32_t>(counts);
  __threadfence();
  atomicExch(state->above + b, kPublished | counts >> 32);
}
__device__ inline std::uint64_t wait_for(SelectionState* state, unsigned b) {
  unsigned long long above = 0;
  do above = *static_cast<volatile unsigned long long*>(state->above + b);
  while ((above & kPublished) == 0);
  __threadfence();
  return above << 32 | static_cast<volatile std::uint32_t*>(state->equal)[b];
}

// A warp copies the entries of a tile to their places; `start` counts the entries before the tile. Each lane loads
// kAhead entries before it looks at the first: at 1% density a tile then costs one wait for memory.
constexpr unsigned kAhead = 2;

__device__ inline void copy_tile(const Staging& in, std::uint32_t tile, uint2 list, std::uint64_t start,
                                 std::uint32_t kth, std::uint32_t ties, std::uint32_t* out_idx, float* out_val) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned lanes_before = (1U << lane) - 1;
  auto above = static_cast<std::uint32_t>(start >> 32);
  auto equal = static_cast<std::uint32_t>(start);
  for (std::uint32_t round = 0; round < list.y; round += 32 * kAhead) {
    const std::uint32_t first = round + lane;
    float v[kAhead];
    std::uint32_t offset[kAhead];
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const std::uint32_t i = first + 32 * j;
      v[j] = i < list.y ? in.val[list.x + i] : 0.0F;
      offset[j] = i < list.y ? in.offset[list.x + i] : 0U;
    }
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const bool is_there = first + 32 * j < list.y;
      const std::uint32_t m = magnitude_bits(v[j]);
      const unsigned larger = __ballot_sync(kAllLanes, is_there && m > kth);
      const unsigned same = __ballot_sync(kAllLanes, is_there && m == kth);
      const std::uint32_t equal_before = equal + __popc(same & lanes_before);
      if (is_there && (m > kth || (m == kth && equal_before < ties))) {
        const std::uint32_t at = above + __popc(larger & lanes_before) + min(equal_before, ties);
        out_idx[at] = tile * kTileElements + offset[j];
        out_val[at] = v[j];
      }
      above += __popc(larger);
      equal += __popc(same);
    }
  }
}

// Puts the entries of all tiles in order. A block takes a range of tiles, and waits only for the counts of the blocks
// before it, which were started before it.
__global__ void __launch_bounds__(kOrderThreads, 2)
    put_in_order(Staging in, std::uint32_t tiles, SelectionHead* head, std::uint32_t* out_idx, float* out_val) {
  using Scan = cub::BlockScan<std::uint64_t, kOrderThreads>;
  __shared__ typename Scan::TempStorage memory;
  __shared__ std::uint64_t starts[kOrderThreads];
  __shared__ uint2 lists[kOrderThreads];
  const std::uint32_t range = (tiles + gridDim.x - 1) / gridDim.x;
  const std::uint32_t begin = min(blockIdx.x * range, tiles);
  const std::uint32_t end = min(begin + range, tiles);
  std::uint64_t mine = 0;
  for (std::uint32_t t = begin + threadIdx.x; t < end; t += kOrderThreads) mine += in.counts[t];
  std::uint64_t before = 0;
  std::uint64_t own = 0;
  Scan(memory).ExclusiveSum(mine, before, own);
  if (threadIdx.x == 0) publish(in.state, blockIdx.x, own);
  __syncthreads();
  std::uint64_t others = threadIdx.x < blockIdx.x ? wait_for(in.state, threadIdx.x) : 0;
  std::uint64_t done = 0;
  Scan(memory).ExclusiveSum(others, before, done);
  const std::uint32_t kth = in.state->kth;
  const std::uint32_t ties = in.state->ties;
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
    const std::uint64_t all = done + own;
    *head = {in.state->reached, static_cast<std::uint32_t>(all >> 32) + min(static_cast<std::uint32_t>(all), ties)};
  }
  if (in.state->reached > in.room) return;
  for (std::uint32_t first = begin; first < end; first += kOrderThreads) {
    std::uint64_t start = 0;
    std::uint64_t total = 0;
    __syncthreads();
    const bool is_there = first + threadIdx.x < end;
    if (is_there) lists[threadIdx.x] = in.tile[first + threadIdx.x];
    Scan(memory).ExclusiveSum(is_there ? in.counts[first + threadIdx.x] : 0, start, total);
    starts[threadIdx.x] = done + start;
    __syncthreads();
    for (std::uint32_t t = threadIdx.x / 32; t < min(kOrderThreads, end - first); t += kOrderThreads / 32)
      copy_tile(in, first + t, lists[t], starts[t], kth, ties, out_idx, out_val);
    done += total;
  }
}

// ---- The host's side ----

constexpr std::size_t kLeastRoom = std::size_t{1} << 16;

Staging staging(OktopkCudaContext& context, std::uint64_t tiles) {
  auto* val = context.lists.at_least<float>(context.room + context.room / 2 + 1);
  auto* counts = context.tiles.at_least<std::uint64_t>(2 * tiles);
  auto* state = context.small.at_least<SelectionState>(1);
  return {reinterpret_cast<std::uint16_t*>(val + context.room),
          val,
          reinterpret_cast<uint2*>(counts + tiles),
          counts,
          state,
          static_cast<std::uint32_t>(context.room)};
}

// The most-th of the state's `reached` magnitudes, of which `room` are in val.
void find_kth(OktopkCudaContext& context, const float* val, std::uint32_t room, std::uint32_t most,
              SelectionState* state) {
  const auto blocks = static_cast<unsigned>(4 * context.multiprocessors);
  cudaStream_t stream = context.stream;
  begin_kth<<<1, 1, 0, stream>>>(most, state);
  count_digits<20, 11><<<blocks, 512, 0, stream>>>(val, room, state);
  find_digit<11, false><<<1, 1024, 0, stream>>>(state);
  count_digits<10, 10><<<blocks, 512, 0, stream>>>(val, room, state);
  find_digit<10, false><<<1, 1024, 0, stream>>>(state);
  count_digits<0, 10><<<blocks, 512, 0, stream>>>(val, room, state);
  find_digit<10, true><<<1, 1024, 0, stream>>>(state);
  check_launch("find_kth");
}

// Brings the entries to pinned memory of the host.
void fetch(OktopkCudaContext& context, const SelectionHead& head, const std::uint32_t* idx, const float* val,
           OktopkCudaEntries& out) {
  auto* to_idx = context.pinned.at_least<std::uint32_t>(2 * std::size_t{head.count});
  auto* to_val = reinterpret_cast<float*>(to_idx + head.count);
  const std::size_t bytes = head.count * sizeof(float);
  OKTOPK_CUDA(cudaMemcpyAsync(to_idx, idx, bytes, cudaMemcpyDeviceToHost, context.stream));
  OKTOPK_CUDA(cudaMemcpyAsync(to_val, val, bytes, cudaMemcpyDeviceToHost, context.stream));
  synchronise(context);
  out = {head.reached, head.count, to_idx, to_val};
}

}  // namespace

const SelectionState* find_kth_of(OktopkCudaContext& context, const float* x, std::uint32_t n, std::uint32_t k) {
  auto* state = context.small.at_least<SelectionState>(1);
  OKTOPK_CUDA(cudaMemsetAsync(state, 0, sizeof(SelectionState), context.stream));
  set_reached<<<1, 1, 0, context.stream>>>(n, state);
  find_kth(context, x, n, k, state);
  return state;
}

void accumulate(OktopkCudaContext& context, const OktopkCudaPass& pass) {
  if (pass.n == 0) return;
  run_pass<false>(context, pass, 0, {});
  end_timing(context);
}

void accumulate_select(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint32_t bound, std::uint64_t most,
                       OktopkCudaEntries& out) {
  out = {};
  if (pass.n == 0) return;
  const std::uint32_t tiles = blocks_for(pass.n, kTileElements);
  context.room = std::max({context.room, kLeastRoom, static_cast<std::size_t>(pass.n / 64)});
  OktopkCudaPass todo = pass;
  for (;;) {
    const Staging lists = staging(context, tiles);
    auto* idx = context.entries.at_least<std::uint32_t>(2 * context.room);
    auto* val = reinterpret_cast<float*>(idx + context.room);
    auto* head = context.head.at_least<SelectionHead>(1);
    run_pass<true>(context, todo, bound, lists);
    if (most < pass.n) {
      find_kth(context, lists.val, lists.room, static_cast<std::uint32_t>(most), lists.state);
      count_kept<<<blocks_for(std::uint64_t{tiles} * 32, 256), 256, 0, context.stream>>>(lists, tiles);
      check_launch("count_kept");
    }
    const unsigned blocks =
        std::min({blocks_for(tiles, 32), static_cast<unsigned>(2 * context.multiprocessors), kMostBlocks});
    put_in_order<<<blocks, kOrderThreads, 0, context.stream>>>(lists, tiles, head, idx, val);
    check_launch("put_in_order");
    end_timing(context);
    synchronise(context);
    if (head->reached <= context.room) return fetch(context, *head, idx, val, out);
    // More than there was room for: the accumulator is complete, so a scan finds them again.
    context.room = std::min<std::size_t>(pass.n, std::size_t{head->reached} + head->reached / 8);
    todo = {.acc = pass.acc,
            .n = pass.n,
            .gradient = nullptr,
            .gradient_type = 0,
            .scale = 0,
            .cleared = nullptr,
            .cleared_count = 0};
  }
}

}  // namespace oktopk::cuda
