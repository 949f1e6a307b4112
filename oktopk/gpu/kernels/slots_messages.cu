// SPDX-License-Identifier: Apache-2.0
// The messages of preset `slots` on the GPU: lists of entries become messages of a fixed size, and messages that
// arrived are made ready for the passes. Also the heads: counts, checks and the thresholds that follow from them. COST:
// about 8 B per entry and 10 B per block of 4096 places.
#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/slots.cuh"

namespace oktopk::cuda {
namespace {

using namespace oktopk::slots;

// The stamp of the blocks of threads that put a message in order: it differs from launch to launch, and is never 0.
__device__ inline std::uint32_t stamp_of(const SlotsState& state, std::uint32_t phase) {
  return static_cast<std::uint32_t>(state.step) * 4 + phase + 1;
}

// The blocks of a message in the order of this step, divided among the gridDim.x blocks of threads that work on it.
class Order {
 public:
  __device__ Order(const Deal& deal, std::uint64_t step) : blocks_(deal.blocks), first_(first_block(deal, step)) {
    const std::uint32_t range = (blocks_ + gridDim.x - 1) / gridDim.x;
    begin = min(blockIdx.x * range, blocks_);
    end = min(begin + range, blocks_);
  }
  // The block of elements that comes at this position.
  __device__ std::uint32_t operator[](std::uint32_t position) const {
    return first_ + position < blocks_ ? first_ + position : first_ + position - blocks_;
  }

  std::uint32_t begin;  // positions of this block of threads
  std::uint32_t end;

 private:
  std::uint32_t blocks_;
  std::uint32_t first_;
};

using OrderScan = cub::BlockScan<std::uint32_t, kOrderThreads>;

// The sum of `mine` over the blocks of threads of this message that come before this one. They were started before, so
// waiting for them ends. `stamp` differs from launch to launch.
__device__ inline std::uint32_t sum_before(unsigned long long* published, std::uint32_t stamp, std::uint32_t mine) {
  __shared__ typename OrderScan::TempStorage memory;
  std::uint32_t before = 0;
  std::uint32_t total = 0;
  OrderScan(memory).ExclusiveSum(mine, before, total);
  if (threadIdx.x == 0) atomicExch(published + blockIdx.x, std::uint64_t{stamp} << 32 | total);
  __syncthreads();
  std::uint32_t other = 0;
  if (threadIdx.x < blockIdx.x) {
    unsigned long long word = 0;
    do word = *static_cast<volatile unsigned long long*>(published + threadIdx.x);
    while (word >> 32 != stamp);
    other = static_cast<std::uint32_t>(word);
  }
  OrderScan(memory).ExclusiveSum(other, before, total);
  __syncthreads();
  return total;
}

// Calls visit(position, start) for each position of this block of threads, kOrderThreads at a time, each in its own
// thread, and after each such round round(first position, number). number_of(block) is 0 beyond the end.
template <class Number, class Visit, class Round>
__device__ inline std::uint32_t in_order(const Order& order, unsigned long long* published, std::uint32_t stamp,
                                         const Number& number_of, const Visit& visit, const Round& round) {
  __shared__ typename OrderScan::TempStorage memory;
  std::uint32_t mine = 0;
  for (std::uint32_t p = order.begin + threadIdx.x; p < order.end; p += kOrderThreads) mine += number_of(order[p]);
  std::uint32_t done = sum_before(published, stamp, mine);
  for (std::uint32_t first = order.begin; first < order.end; first += kOrderThreads) {
    const std::uint32_t p = first + threadIdx.x;
    const std::uint32_t number = p < order.end ? number_of(order[p]) : 0;
    std::uint32_t start = 0;
    std::uint32_t total = 0;
    OrderScan(memory).ExclusiveSum(number, start, total);
    if (p < order.end) visit(order[p], done + start, number);
    __syncthreads();
    round(first, min(kOrderThreads, order.end - first));
    __syncthreads();
    done += total;
  }
  return done;
}

// The part of one thread in a message's check and in the tail's counts.
struct Tally {
  std::uint32_t check = 0;
  std::uint32_t steps[kTail] = {};
};

// Fills message blockIdx.y: gives each block of elements its place as far as entries fit, and copies these; the others
// go back to `from`, which is laid out as `home` says.
__global__ void __launch_bounds__(kOrderThreads)
    fill_kernel(Deal deal, Deal home, SlotsState* state, const std::uint32_t* bound, std::uint32_t phase,
                unsigned long long* published, Lists in, Messages out, float* from) {
  __shared__ std::uint32_t starts[kOrderThreads];
  __shared__ std::uint32_t sums[kTail + 1];
  const std::uint32_t q = blockIdx.y;
  const std::size_t list = std::size_t{q} * deal.blocks;
  const unsigned lane = threadIdx.x % 32;
  const Order order(deal, state->step);
  if (threadIdx.x <= kTail) sums[threadIdx.x] = 0;
  Tally tally;
  const auto place = [&](std::uint32_t b, std::uint32_t start, std::uint32_t number) {
    const std::uint32_t begin = min(start, out.room);
    const std::uint32_t fits = min(number, out.room - begin);
    starts[threadIdx.x] = begin;
    in.starts[list + b] = begin;
    out.count(q)[b] = static_cast<std::uint16_t>(fits);
    tally.check += check_of(fits, b);
  };
  const auto copy = [&](std::uint32_t first, std::uint32_t number) {
    for (std::uint32_t t = threadIdx.x / 32; t < number; t += kOrderThreads / 32) {
      const std::uint32_t b = order[first + t];
      const std::uint32_t* entries = in.entries + (list + b) * kMostOfBlock;
      for (std::uint32_t i = lane; i < in.counts[list + b]; i += 32) {
        const std::uint32_t entry = entries[i];
        const std::uint32_t step = max(tail_step(value_bits_of(entry) & 0x7fffffffU, *bound), kStepsDown);
#pragma unroll
        for (unsigned j = kStepsDown; j < kTail; ++j) tally.steps[j] += step == j ? 1U : 0U;
        if (starts[t] + i < out.room) {
          out.entries(q)[starts[t] + i] = entry;
          tally.check += check_of(entry, deal.blocks + starts[t] + i);
        } else {
          float& x = from[home.index(q, std::uint64_t{b} * kBlock + place_of(entry))];
          x = __fadd_rn(x, value_in(entry));
        }
      }
    }
  };
  const std::uint32_t stamp = stamp_of(*state, phase);
  const std::uint32_t done = in_order(
      order, published + std::size_t{q} * gridDim.x, stamp,
      [&](std::uint32_t b) { return std::uint32_t{in.counts[list + b]}; }, place, copy);
#pragma unroll
  for (unsigned j = kStepsDown; j < kTail; ++j) {
    const std::uint32_t sum = __reduce_add_sync(kAllLanes, tally.steps[j]);
    if (lane == 0 && sum != 0) atomicAdd(sums + j, sum);
  }
  const std::uint32_t check = __reduce_add_sync(kAllLanes, tally.check);
  if (lane == 0) atomicAdd(sums + kTail, check);
  __syncthreads();
  if (threadIdx.x < kTail && sums[threadIdx.x] != 0) atomicAdd(state->tail + threadIdx.x, sums[threadIdx.x]);
  if (threadIdx.x == kTail) atomicAdd(&out.head(q)->check, sums[kTail]);
  if (blockIdx.x != gridDim.x - 1 || threadIdx.x != 0) return;
  out.head(q)->count = min(done, out.room);
  if (deal.blocks % 2 == 1) out.count(q)[deal.blocks] = 0;
}

__device__ inline void sum_tail(const SlotsState& state, std::uint64_t (&reached)[kTail]) {
  std::uint64_t sum = 0;
  for (unsigned j = kTail; j-- > 0;) reached[j] = sum += state.tail[j];
}

__device__ inline void complete_head(const SlotsState& state, Head& head) {
  head.tag = tag_of(state.tag, state.step);
  head.bad = state.bad | (state.wrong == kSumOverflow ? kBadSum : 0U);
}

// Completes the heads, and steers the local threshold. One warp.
__global__ void end_send(Deal deal, SlotsState* state, std::uint32_t aim, Messages out) {
  std::uint64_t reached[kTail];
  sum_tail(*state, reached);
  for (std::uint32_t q = threadIdx.x; q < deal.P; q += blockDim.x) complete_head(*state, *out.head(q));
  __syncwarp();
  if (threadIdx.x != 0) return;
  state->sent = 0;
  for (std::uint32_t q = 0; q < deal.P; ++q) state->sent += out.head(q)->count;
  state->local_bound = steered(state->local_bound, reached, aim);
}

// For message blockIdx.y that arrived: where each block of elements begins, and the check of the counts. Marks messages
// that make no sense.
__global__ void __launch_bounds__(kOrderThreads)
    start_kernel(Deal deal, SlotsState* state, std::uint32_t phase, unsigned long long* published, Messages in,
                 std::uint32_t* starts, std::uint32_t* checks) {
  const std::uint32_t q = blockIdx.y;
  const Order order(deal, state->step);
  std::uint32_t check = 0;
  const auto note = [&](std::uint32_t b, std::uint32_t start, std::uint32_t number) {
    starts[std::size_t{q} * deal.blocks + b] = start;
    check += check_of(number, b);
  };
  const std::uint32_t done = in_order(
      order, published + std::size_t{q} * gridDim.x, stamp_of(*state, phase),
      [&](std::uint32_t b) { return std::uint32_t{in.count(q)[b]}; }, note, [](std::uint32_t, std::uint32_t) {});
  check = __reduce_add_sync(kAllLanes, check);
  if (threadIdx.x % 32 == 0 && check != 0) atomicAdd(checks + q, check);
  if (blockIdx.x != gridDim.x - 1 || threadIdx.x != 0) return;
  const Head& head = *in.head(q);
  if (head.tag != tag_of(state->tag, state->step)) atomicMax(&state->wrong, std::uint32_t{kWrongTag});
  if (head.count != done || done > in.room) atomicMax(&state->wrong, std::uint32_t{kWrongCount});
  if ((head.bad & kBadValue) != 0) atomicOr(&state->bad, kBadValue);
  if ((head.bad & kBadSum) != 0) atomicMax(&state->wrong, std::uint32_t{kSumOverflow});
}

// Completes the share's head and compares the checks of what arrived. One warp.
__global__ void end_own(Deal deal, SlotsState* state, Messages arrived, const std::uint32_t* checks, Messages share) {
  if (threadIdx.x == 0) {
    Head& head = *share.head(0);
    complete_head(*state, head);
    std::uint64_t reached[kTail];
    sum_tail(*state, reached);
    head.bound = state->global_bound;
    for (unsigned j = 0; j < kTail; ++j) head.reached[j] = static_cast<std::uint32_t>(reached[j]);
  }
  if (state->bad != 0 || state->wrong != kNoFault) return;
  std::uint32_t off = 0;
  for (std::uint32_t q = threadIdx.x; q < deal.P; q += blockDim.x) off += arrived.head(q)->check - checks[q];
  if (__reduce_add_sync(kAllLanes, off) != 0) atomicMax(&state->wrong, std::uint32_t{kWrongCheck});
}

// After a void step: what was sent comes back.
__global__ void __launch_bounds__(kThreads)
    undo_kernel(Deal deal, const SlotsState* state, Messages sent, const std::uint32_t* starts, float* acc) {
  if (state->bad == 0) return;
  const std::uint32_t q = blockIdx.y;
  for (std::uint32_t b = blockIdx.x * kWarps + threadIdx.x / 32; b < deal.blocks; b += gridDim.x * kWarps)
    for (std::uint32_t i = threadIdx.x % 32; i < sent.count(q)[b]; i += 32) {
      const std::uint32_t entry = sent.entries(q)[starts[std::size_t{q} * deal.blocks + b] + i];
      float& x = acc[deal.index(q, std::uint64_t{b} * kBlock + place_of(entry))];
      x = __fadd_rn(x, value_in(entry));
    }
}

// Steers the global threshold by all shares, and ends the step. One thread.
__global__ void end_apply(Deal deal, SlotsState* state, std::uint32_t aim, bool was_first, Messages in) {
  ShareCounts counts;
  state->applied = 0;
  for (std::uint32_t q = 0; q < deal.P; ++q) {
    counts.add(*in.head(q));
    state->applied += in.head(q)->count;
  }
  if (state->bad == 0 && state->wrong == kNoFault)
    state->global_bound = counts.next_bound(state->global_bound, was_first, aim);
  state->was_bad += state->bad;
  state->bad = 0;
  ++state->step;
}

// Blocks of threads that put `messages` messages in order, or walk over them.
dim3 order_grid(const OktopkCudaContext& context, const Deal& deal, std::uint32_t messages) {
  const unsigned filling = static_cast<unsigned>(2 * context.multiprocessors) / messages + 1;
  return {std::clamp(blocks_for(deal.blocks, 32), 1U, std::min(filling, kOrderThreads)), messages};
}

}  // namespace

Messages messages(const Deal& deal, const std::uint32_t* words, std::uint64_t k) {
  return {const_cast<std::uint32_t*>(words), static_cast<std::uint32_t>(message_words(deal, k)), count_words(deal),
          message_room(deal, k)};
}

void start_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, Phase phase, const Messages& in) {
  const Deal& deal = slots.deal;
  auto* checks = slots.checks.get<std::uint32_t>();
  OKTOPK_CUDA(cudaMemsetAsync(checks, 0, deal.P * sizeof(*checks), context.stream));
  start_kernel<<<order_grid(context, deal, deal.P), kOrderThreads, 0, context.stream>>>(
      deal, slots.state(), phase, slots.published.get<unsigned long long>(), in, slots.starts.get<std::uint32_t>(),
      checks);
  check_launch("start_kernel");
}

void fill_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, Phase phase, std::uint32_t count,
                   const Deal& home, const std::uint32_t* bound, const Lists& list, const Messages& out, float* from) {
  OKTOPK_CUDA(cudaMemset2DAsync(out.words, out.stride * sizeof(std::uint32_t), 0, sizeof(Head), count, context.stream));
  fill_kernel<<<order_grid(context, slots.deal, count), kOrderThreads, 0, context.stream>>>(
      slots.deal, home, slots.state(), bound, phase, slots.published.get<unsigned long long>(), list, out, from);
  check_launch("fill_kernel");
}

void end_messages(OktopkCudaContext& context, const OktopkCudaSlots& slots, std::uint64_t k, const Messages& out) {
  end_send<<<1, 32, 0, context.stream>>>(slots.deal, slots.state(), static_cast<std::uint32_t>(k), out);
  check_launch("end_send");
}

void end_share(OktopkCudaContext& context, const OktopkCudaSlots& slots, const Messages& arrived, const Messages& out) {
  end_own<<<1, 32, 0, context.stream>>>(slots.deal, slots.state(), arrived, slots.checks.get<std::uint32_t>(), out);
  check_launch("end_own");
}

void end_step(OktopkCudaContext& context, const OktopkCudaSlots& slots, std::uint64_t k, const Messages& shares,
              const Messages& sent, float* acc) {
  const Deal& deal = slots.deal;
  undo_kernel<<<order_grid(context, deal, deal.P), kThreads, 0, context.stream>>>(
      deal, slots.state(), sent, slots.sent_starts.get<std::uint32_t>(), acc);
  end_apply<<<1, 1, 0, context.stream>>>(deal, slots.state(), static_cast<std::uint32_t>(k), slots.was_first, shares);
  check_launch("end_apply");
}

}  // namespace oktopk::cuda
