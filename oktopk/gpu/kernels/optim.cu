// SPDX-License-Identifier: Apache-2.0
// A step of AdamW or SGD over all tensors of a group: the rules of optim/adam_rule.h and sgd_rule.h, which the host's
// steps (optim/tensor_kernels.h) use too. Two kernels: one thread block takes the clock and the step counts forward,
// then a block for each 16384 coordinates, or 4096 indices, moves the weights. All that changes from step to step is in
// GPU memory, so nothing waits for the host, and a CUDA graph can hold the step.
// COST: dense, one read of weights, mean and moments and one write of all but the mean; where the mean is not zero, one
// read of the mean and a sector of each array per arrival.
// INVARIANT: the bits of the host, except for NaNs. Only dense steps of Adam take a root where the host takes a power:
// the two may differ in the last bit of a double, which a float hides.
#include "oktopk/gpu/kernels/optim.cuh"

namespace oktopk::cuda {
namespace {

constexpr std::uint64_t kSpan = 4 * kTileElements;  // coordinates of a block; a block of a list has a tile of indices

__device__ inline std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

enum Fault : std::uint32_t { kUnfitRate = 1, kNoRoom = 2, kBadIndex = 3 };

// ---- A block's part ----

// A tensor, the rule for it, and the scale of its mean.
template <class Rule>
struct Walk {
  using W = typename Rule::Weight;
  using Real = typename Rule::Real;

  __device__ Real unscaled(W mean) const { return scale == 1 ? widen(mean) : widen(mean) / scale; }

  template <bool kVector>
  __device__ void dense_four(std::uint64_t at, std::uint64_t end) const {
    W* weights = static_cast<W*>(t.weights);
    Real* first = static_cast<Real*>(t.first);
    Real* second = static_cast<Real*>(t.second);
    Four<W> w = load<kVector>(weights, at, end);
    const Four<W> g = load<kVector>(static_cast<const W*>(t.mean), at, end);
    Four<Real> m{};
    Four<Real> v{};
    if (first != nullptr) m = load<kVector>(first, at, end);
    if (second != nullptr) v = load<kVector>(second, at, end);
#pragma unroll
    for (int i = 0; i < 4; ++i) narrow(rule.dense(widen(w.x[i]), unscaled(g.x[i]), m.x[i], v.x[i]), w.x[i]);
    store<kVector>(weights, at, end, w);
    if (first != nullptr) store<kVector>(first, at, end, m);
    if (second != nullptr) store<kVector>(second, at, end, v);
  }

  __device__ void dense(std::uint64_t begin, std::uint64_t end) const {
    const bool vectors = fits_vectors<W>(t.weights) && fits_vectors<W>(t.mean) && fits_vectors<Real>(t.first) &&
                         fits_vectors<Real>(t.second);
    for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += kRow)
      if (vectors && at + 4 <= end)
        dense_four<true>(at, end);
      else
        dense_four<false>(at, end);
  }

  __device__ void arrive(std::uint64_t i) const {
    W& weight = *global(static_cast<W*>(t.weights) + i);
    std::uint32_t& last = *global(t.last + i);
    Real* first = static_cast<Real*>(t.first);
    Real* second = static_cast<Real*>(t.second);
    Coordinate<Real> at{.last = last};
    if (first != nullptr) at.first = *global(first + i);
    if (second != nullptr) at.second = *global(second + i);
    if (t.arrivals != nullptr) at.arrivals = *global(t.arrivals + i);
    narrow(rule.arrive(widen(weight), unscaled(*global(static_cast<const W*>(t.mean) + i)), at), weight);
    if (first != nullptr) *global(first + i) = at.first;
    if (second != nullptr) *global(second + i) = at.second;
    if (t.arrivals != nullptr) *global(t.arrivals + i) = at.arrivals;
    last = at.last;
  }

  // A bit for each of the thread's elements of a tile, row by row: whether the mean is not zero there.
  template <bool kVector>
  __device__ std::uint32_t nonzero_marks(std::uint64_t begin, std::uint64_t end) const {
    Four<W> g[kRows];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
      g[r] = load<kVector>(static_cast<const W*>(t.mean), begin + r * kRow + 4 * threadIdx.x, end);
    std::uint32_t marks = 0;
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        if (widen(g[r].x[i]) != 0) marks |= 1U << (4 * r + i);
    return marks;
  }

  // Places in the tile where the mean is not zero, in order, into `found`; returns how many. All threads call it.
  __device__ unsigned find_nonzero(std::uint64_t begin, std::uint64_t end, std::uint16_t* found) const {
    const bool vectors = fits_vectors<W>(t.mean) && end - begin == kTileElements;
    const std::uint32_t marks = vectors ? nonzero_marks<true>(begin, end) : nonzero_marks<false>(begin, end);
    const uint2 range = compact(
        marks, [](std::uint32_t) { return 0U; },
        [&](std::uint32_t place, unsigned r, unsigned i) {
          found[place] = static_cast<std::uint16_t>(r * kRow + 4 * threadIdx.x + i);
        });
    __syncthreads();
    return range.y;
  }

  // The coordinates of a tile that arrive, or those that so many indices name.
  __device__ void arrive_tile(std::uint64_t begin, std::uint64_t end, OktopkCudaClock& clock) const {
    __shared__ std::uint16_t found[kTileElements];
    const bool is_nonzero = t.where == OKTOPK_CUDA_NONZERO;
    const unsigned count = is_nonzero ? find_nonzero(begin, end, found) : static_cast<unsigned>(end - begin);
    for (unsigned j = threadIdx.x; j < count; j += kThreads) {
      std::uint64_t i = begin + (is_nonzero ? found[j] : j);
      if (t.where == OKTOPK_CUDA_LISTED) i = static_cast<std::uint64_t>(*global(t.indices + i));
      if (i < t.size)
        arrive(i);
      else
        clock.fault = kBadIndex;
    }
  }

  // A barrier of the next tile's compact() comes before it writes `found` again.
  __device__ void run(std::uint64_t block, OktopkCudaClock& clock) const {
    const bool is_list = t.where == OKTOPK_CUDA_LISTED;
    const std::uint64_t size = is_list ? t.count : t.size;
    const std::uint64_t span = is_list ? kTileElements : kSpan;
    const std::uint64_t begin = block * span;
    const std::uint64_t end = least(begin + span, size);
    if (t.where == OKTOPK_CUDA_DENSE) return dense(begin, end);
    for (std::uint64_t tile = begin; tile < end; tile += kTileElements)
      arrive_tile(tile, least(tile + kTileElements, end), clock);
  }

  const Tensor t;
  const Rule rule;
  const Real scale;
};

// ---- Kernels ----

// Begins the step on the clock; false: the step is skipped.
__device__ bool tick(const Group& group) {
  OktopkCudaClock& clock = *group.clock;
  const double rate = group.rate_on_gpu == nullptr ? group.rate : static_cast<double>(*group.rate_on_gpu);
  const double kept = decay_of_one_step(rate, group.decoupled_decay);
  if (group.found_inf != nullptr && *group.found_inf != 0) return false;
  if (!(rate >= 0 && isfinite(rate) && kept > 0)) return clock.fault = kUnfitRate, false;
  clock.rate = rate;
  clock.kept = kept;
  clock.scale = group.grad_scale == nullptr ? 1 : static_cast<double>(*group.grad_scale);
  if (group.totals == nullptr) return true;
  const std::uint32_t now = clock.now + 1;
  if (now >= group.room) return clock.fault = kNoRoom, false;
  auto* totals = reinterpret_cast<StepTotals*>(group.totals);
  totals[now] = {totals[now - 1].rate + rate, totals[now - 1].kept * kept};
  group.log[2 * now] = rate;
  group.log[2 * now + 1] = group.decoupled_decay;
  clock.now = now;
  return true;
}

// IntervalClock::tick() of the host, and one more step for every tensor.
__global__ void __launch_bounds__(kThreads) begin_step(const __grid_constant__ Group group) {
  OktopkCudaClock& clock = *group.clock;
  if (threadIdx.x == 0) clock.skip = tick(group) ? 0 : 1;
  __syncthreads();
  if (clock.skip != 0) return;
  for (std::uint64_t i = threadIdx.x; i < group.tensor_count; i += kThreads)
    if (float* steps = group.tensors[i].steps; steps != nullptr) *steps += 1;
  if (group.totals == nullptr) return;
  auto* totals = reinterpret_cast<StepTotals*>(group.totals);
  const bool is_small = totals[clock.now].kept < kLeastKept;
  __syncthreads();  // before the first total changes
  if (!is_small) return;
  for (std::uint32_t i = threadIdx.x; i <= clock.now; i += kThreads) totals[i].kept /= kLeastKept;
}

template <class Rule>
__global__ void __launch_bounds__(kThreads, sizeof(typename Rule::Real) == sizeof(float) ? 4 : 2)
    make_step(const __grid_constant__ Group group, const std::uint64_t* blocks) {
  if (group.clock->skip != 0) return;
  const std::uint64_t block = blocks[blockIdx.x];
  const Tensor t = group.tensors[block >> 32];
  const Walk<Rule> walk{t, Rule(group, t), static_cast<typename Rule::Real>(group.clock->scale)};
  walk.run(block & 0xffffffffU, *group.clock);
}

template <class W>
const std::uint64_t* launch(const Group& group, const std::uint64_t* blocks, std::uint64_t count) {
  if (count == 0) return blocks;
  const auto kernel = group.is_sgd != 0 ? make_step<Sgd<W>> : make_step<Adam<W>>;
  kernel<<<static_cast<unsigned>(count), kThreads, 0, static_cast<cudaStream_t>(group.stream)>>>(group, blocks);
  check_launch("make_step");
  return blocks + count;
}

}  // namespace

void optim_step(const Group& group) {
  begin_step<<<1, kThreads, 0, static_cast<cudaStream_t>(group.stream)>>>(group);
  check_launch("begin_step");
  const std::uint64_t* blocks = group.blocks;
  blocks = launch<float>(group, blocks, group.block_counts[0]);
  blocks = launch<__nv_bfloat16>(group, blocks, group.block_counts[1]);
  blocks = launch<__half>(group, blocks, group.block_counts[2]);
  launch<double>(group, blocks, group.block_counts[3]);
}

}  // namespace oktopk::cuda
