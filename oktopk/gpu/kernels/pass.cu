// SPDX-License-Identifier: Apache-2.0
// The pass over n of accumulate and of accumulate_select. A block takes a tile of 4096 elements. It adds the gradient,
// writes the accumulator back, and appends the tile's entries, in index order, to a list; one atomic addition per tile
// reserves their place, so no block waits for another.
// COST: 12 B per element with a gradient in fp32, 10 B in 16 bits, 4 B without one; 6 B per entry.
#include <type_traits>
#include <utility>

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/selection.cuh"

namespace oktopk::cuda {
namespace {

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

}  // namespace

void accumulate(OktopkCudaContext& context, const OktopkCudaPass& pass) {
  if (pass.n == 0) return;
  run_pass<false>(context, pass, 0, {});
  end_timing(context);
}

void run_selecting_pass(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint32_t bound,
                        const Staging& out) {
  run_pass<true>(context, pass, bound, out);
}

}  // namespace oktopk::cuda
