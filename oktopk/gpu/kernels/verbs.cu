// SPDX-License-Identifier: Apache-2.0
// The other verbs over n elements, and those at entries. Sums of doubles keep the order of the CPU device
// (cpu/loops.h), so that thresholds fitted to them are equal bit by bit.
// COST: each reads its elements once; multiply also writes them.
#include <algorithm>
#include <vector>

#include "oktopk/gpu/kernels/context.cuh"
#include "oktopk/gpu/kernels/elements.cuh"

namespace oktopk::cuda {
namespace {

constexpr unsigned kBins = 8192;
constexpr unsigned kBinShift = 18;
constexpr unsigned kMomentLanes = 16;
constexpr std::uint64_t kMomentBlock = std::uint64_t{1} << 16;
constexpr unsigned kCluster = 4;

// Enough blocks to fill the GPU, not more than there is work for.
unsigned filling_blocks(const OktopkCudaContext& context, std::uint64_t items, unsigned per_block) {
  const auto most = static_cast<std::uint64_t>(16 * context.multiprocessors);
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + per_block - 1) / per_block, 1, most));
}

__global__ void multiply_kernel(float* x, std::uint64_t n, float factor) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride)
    x[i] = __fmul_rn(x[i], factor);
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    find_nonfinite(const T* x, std::uint64_t n, std::uint64_t first_tile, unsigned long long* first) {
  const std::uint64_t tile = first_tile + blockIdx.x;
  const std::uint64_t begin = tile * kTileElements + 4 * threadIdx.x;
  float v[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(x, begin + r * kRow, n, v[r]);
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (magnitude_bits(v[r][i]) >= 0x7f800000U)
        atomicMin(first, static_cast<unsigned long long>(begin + r * kRow + i));
}

template <bool kVector>
__global__ void __launch_bounds__(kThreads) count_bins(const float* x, std::uint64_t n, std::uint64_t first_tile,
                                                       std::uint64_t end_tile, unsigned long long* bins) {
  __shared__ std::uint32_t counts[kBins];
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads) counts[b] = 0;
  __syncthreads();
  for (std::uint64_t tile = first_tile + blockIdx.x; tile < end_tile; tile += gridDim.x) {
    float v[kRows][4];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
      load_four<kVector>(x, tile * kTileElements + r * kRow + 4 * threadIdx.x, n, v[r]);
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        if (magnitude_bits(v[r][i]) != 0) atomicAdd(counts + (magnitude_bits(v[r][i]) >> kBinShift), 1U);
  }
  __syncthreads();
  for (unsigned b = threadIdx.x; b < kBins; b += kThreads)
    if (counts[b] != 0) atomicAdd(bins + b, static_cast<unsigned long long>(counts[b]));
}

__device__ inline bool holds(const std::uint32_t* sorted, std::uint32_t count, std::uint64_t i) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    (sorted[middle] < i ? low : high) = sorted[middle] < i ? middle + 1 : middle;
  }
  return low < count && sorted[low] == i;
}

template <class G>
__global__ void sample(const float* acc, std::uint64_t n, const G* gradient, float scale, const std::uint32_t* cleared,
                       std::uint32_t cleared_count, std::uint64_t offset, std::uint64_t stride, std::uint64_t clusters,
                       std::uint32_t* out) {
  const std::uint64_t t = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= clusters * kCluster) return;
  const std::uint64_t i = offset + t / kCluster * stride + t % kCluster;
  if (i >= n) {
    out[t] = 0xffffffffU;
    return;
  }
  const bool is_cleared = holds(cleared, cleared_count, i);
  const float before = is_cleared ? 0.0F : acc[i];
  out[t] = magnitude_bits(gradient == nullptr ? before : __fadd_rn(before, __fmul_rn(scale, to_float(gradient[i]))));
}

// One thread per lane of a block of elements.
__global__ void sum_lanes(const float* x, std::uint64_t n, std::uint64_t lanes, double* sums, double* squares) {
  const std::uint64_t t = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= lanes) return;
  const std::uint64_t begin = t / kMomentLanes * kMomentBlock;
  const std::uint64_t end = min(n, begin + kMomentBlock);
  double sum = 0, square = 0;
#pragma unroll 8
  for (std::uint64_t i = begin + t % kMomentLanes; i < end; i += kMomentLanes) {
    const double v = x[i];
    sum = __dadd_rn(sum, v);
    square = __dadd_rn(square, __dmul_rn(v, v));
  }
  sums[t] = sum;
  squares[t] = square;
}

__global__ void add_entries(float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
                            std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) x[idx[i] - base] = __fadd_rn(x[idx[i] - base], val[i]);
}

__global__ void clear_entries(float* x, std::uint32_t base, const std::uint32_t* idx, std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) x[idx[i] - base] = 0.0F;
}

__global__ void take_entries(float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
                             std::uint32_t count, std::uint32_t take, float* sums, float* befores) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const float before = x[idx[i] - base];
  if (befores != nullptr) befores[i] = before;
  const float sum = val == nullptr ? before : __fadd_rn(before, val[i]);
  sums[i] = sum;
  if (magnitude_bits(sum) >= take)
    x[idx[i] - base] = 0.0F;
  else if (val != nullptr)
    x[idx[i] - base] = sum;
}

}  // namespace

void multiply(OktopkCudaContext& context, float* x, std::uint64_t n, float factor) {
  if (n == 0) return;
  begin_timing(context);
  multiply_kernel<<<filling_blocks(context, n, kThreads), kThreads, 0, context.stream>>>(x, n, factor);
  check_launch("multiply_kernel");
  end_timing(context);
}

std::uint64_t first_nonfinite(OktopkCudaContext& context, const void* x, std::uint32_t type, std::uint64_t n) {
  if (n == 0) return 0;
  auto* first = context.small.at_least<unsigned long long>(1);
  OKTOPK_CUDA(cudaMemsetAsync(first, 0xff, sizeof(*first), context.stream));
  begin_timing(context);
  for_type(type, [&](const auto* t) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(t)>>;
    const auto launch = [&](auto kernel, std::uint64_t from, unsigned number) {
      kernel<<<number, kThreads, 0, context.stream>>>(static_cast<const T*>(x), n, from, first);
    };
    launch_tiles(is_aligned(x, 4 * sizeof(T)) ? n / kTileElements : 0, blocks_for(n, kTileElements),
                 find_nonfinite<T, true>, find_nonfinite<T, false>, launch);
  });
  check_launch("find_nonfinite");
  end_timing(context);
  auto* found = context.pinned.at_least<unsigned long long>(1);
  OKTOPK_CUDA(cudaMemcpyAsync(found, first, sizeof(*first), cudaMemcpyDeviceToHost, context.stream));
  synchronise(context);
  return std::min<std::uint64_t>(*found, n);
}

void magnitude_histogram(OktopkCudaContext& context, const float* x, std::uint64_t n, std::uint64_t* bins) {
  if (n == 0) return;
  auto* counts = context.small.at_least<unsigned long long>(kBins);
  OKTOPK_CUDA(cudaMemsetAsync(counts, 0, kBins * sizeof(*counts), context.stream));
  begin_timing(context);
  const auto launch = [&](auto kernel, std::uint64_t from, unsigned number) {
    const unsigned blocks = std::min(number, static_cast<unsigned>(7 * context.multiprocessors));
    kernel<<<blocks, kThreads, 0, context.stream>>>(x, n, from, from + number, counts);
  };
  launch_tiles(is_aligned(x, 16) ? n / kTileElements : 0, blocks_for(n, kTileElements), count_bins<true>,
               count_bins<false>, launch);
  check_launch("count_bins");
  end_timing(context);
  auto* found = context.pinned.at_least<unsigned long long>(kBins);
  OKTOPK_CUDA(cudaMemcpyAsync(found, counts, kBins * sizeof(*counts), cudaMemcpyDeviceToHost, context.stream));
  synchronise(context);
  for (unsigned b = 0; b < kBins; ++b) bins[b] += found[b];
}

void sample_magnitudes(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint64_t offset,
                       std::uint64_t stride, std::uint64_t clusters, std::uint32_t* out) {
  const std::uint64_t count = clusters * kCluster;
  if (count == 0) return;
  auto* cleared = context.cleared.at_least<std::uint32_t>(pass.cleared_count + 1);
  if (pass.cleared_count > 0) send(context, cleared, pass.cleared, pass.cleared_count);
  auto* sampled = context.small.at_least<std::uint32_t>(count);
  begin_timing(context);
  for_type(pass.gradient_type, [&](const auto* t) {
    using G = std::remove_const_t<std::remove_pointer_t<decltype(t)>>;
    sample<<<blocks_for(count, kThreads), kThreads, 0, context.stream>>>(
        pass.acc, pass.n, static_cast<const G*>(pass.gradient), pass.scale, cleared,
        static_cast<std::uint32_t>(pass.cleared_count), offset, stride, clusters, sampled);
  });
  check_launch("sample");
  end_timing(context);
  auto* found = context.pinned.at_least<std::uint32_t>(count);
  OKTOPK_CUDA(cudaMemcpyAsync(found, sampled, count * sizeof(*found), cudaMemcpyDeviceToHost, context.stream));
  synchronise(context);
  std::copy_n(found, count, out);
}

void moments(OktopkCudaContext& context, const float* x, std::uint64_t n, double* sums, double* squares) {
  if (n == 0) return;
  const std::uint64_t lanes = blocks_for(n, kMomentBlock) * std::uint64_t{kMomentLanes};
  auto* parts = context.small.at_least<double>(2 * lanes);
  begin_timing(context);
  sum_lanes<<<blocks_for(lanes, kThreads), kThreads, 0, context.stream>>>(x, n, lanes, parts, parts + lanes);
  check_launch("sum_lanes");
  end_timing(context);
  OKTOPK_CUDA(cudaMemcpyAsync(sums, parts, lanes * sizeof(double), cudaMemcpyDeviceToHost, context.stream));
  OKTOPK_CUDA(cudaMemcpyAsync(squares, parts + lanes, lanes * sizeof(double), cudaMemcpyDeviceToHost, context.stream));
  synchronise(context);
}

void add_at(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
            std::uint64_t count) {
  if (count == 0) return;
  auto* to_idx = context.entries.at_least<std::uint32_t>(2 * count);
  auto* to_val = reinterpret_cast<float*>(to_idx + count);
  send(context, to_idx, idx, count);
  send(context, to_val, val, count);
  begin_timing(context);
  add_entries<<<blocks_for(count, kThreads), kThreads, 0, context.stream>>>(x, base, to_idx, to_val,
                                                                            static_cast<std::uint32_t>(count));
  check_launch("add_entries");
  end_timing(context);
}

void clear_at(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, std::uint64_t count) {
  if (count == 0) return;
  auto* to_idx = context.entries.at_least<std::uint32_t>(count);
  send(context, to_idx, idx, count);
  begin_timing(context);
  clear_entries<<<blocks_for(count, kThreads), kThreads, 0, context.stream>>>(x, base, to_idx,
                                                                              static_cast<std::uint32_t>(count));
  check_launch("clear_entries");
  end_timing(context);
}

void add_take(OktopkCudaContext& context, float* x, std::uint32_t base, const std::uint32_t* idx, const float* val,
              std::uint64_t count, std::uint32_t take, float* sums, float* before) {
  if (count == 0) return;
  auto* to_idx = context.entries.at_least<std::uint32_t>((before == nullptr ? 3 : 4) * count);
  auto* to_val = reinterpret_cast<float*>(to_idx + count);
  float* const made = to_val + count;
  float* const found = before == nullptr ? nullptr : made + count;
  send(context, to_idx, idx, count);
  if (val != nullptr) send(context, to_val, val, count);
  begin_timing(context);
  take_entries<<<blocks_for(count, kThreads), kThreads, 0, context.stream>>>(
      x, base, to_idx, val == nullptr ? nullptr : to_val, static_cast<std::uint32_t>(count), take, made, found);
  check_launch("take_entries");
  end_timing(context);
  const auto fetch = [&](float* to, const float* from) {
    if (from == nullptr) return;
    OKTOPK_CUDA(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToHost, context.stream));
  };
  fetch(sums, made);
  fetch(before, found);
  synchronise(context);
}

}  // namespace oktopk::cuda
