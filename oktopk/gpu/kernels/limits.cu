// SPDX-License-Identifier: Apache-2.0
// The limits that memory sets: the plainest passes over n elements, 16 bytes per access, four of them in flight per
// thread. `oktopk-lab kernels --device cuda` times the other kernels beside them; no step uses them.
// COST: 4 B per element (read, set), 8 B (copy), 8 B and the gradient's size (axpy).
#include <type_traits>

#include "oktopk/gpu/kernels/context.cuh"
#include "oktopk/gpu/kernels/elements.cuh"

namespace oktopk::cuda {
namespace {

// `sink` is written for a sum that is not a number only: so no load can be left out, and none is added.
template <bool kVector>
__global__ void __launch_bounds__(kThreads)
    read_kernel(const float* x, std::uint64_t n, std::uint64_t first_tile, float* sink) {
  const std::uint64_t first = (first_tile + blockIdx.x) * kTileElements + 4 * threadIdx.x;
  float v[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(x, first + r * kRow, n, v[r]);
  float sum = 0;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) sum += v[r][0] + v[r][1] + v[r][2] + v[r][3];
  if (sum != sum) *sink = sum;
}

template <class G, bool kVector>
__global__ void __launch_bounds__(kThreads)
    axpy_kernel(float* y, const G* x, float a, std::uint64_t n, std::uint64_t first_tile) {
  const std::uint64_t first = (first_tile + blockIdx.x) * kTileElements + 4 * threadIdx.x;
  float sum[kRows][4];
  float g[kRows][4];
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(y, first + r * kRow, n, sum[r]);
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) load_four<kVector>(x, first + r * kRow, n, g[r]);
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) sum[r][i] += a * g[r][i];
    store_four<kVector>(y, first + r * kRow, n, sum[r]);
  }
}

void read(OktopkCudaContext& context, const float* x, std::uint64_t n) {
  auto* sink = context.small.at_least<float>(1);
  const auto launch = [&](auto kernel, std::uint64_t first, unsigned number) {
    kernel<<<number, kThreads, 0, context.stream>>>(x, n, first, sink);
  };
  launch_tiles(is_aligned(x, 16) ? n / kTileElements : 0, blocks_for(n, kTileElements), read_kernel<true>,
               read_kernel<false>, launch);
}

void axpy(OktopkCudaContext& context, const OktopkCudaPass& pass) {
  for_type(pass.gradient_type, [&](const auto* type) {
    using G = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    const auto* x = static_cast<const G*>(pass.gradient);
    const auto launch = [&](auto kernel, std::uint64_t first, unsigned number) {
      kernel<<<number, kThreads, 0, context.stream>>>(pass.acc, x, pass.scale, pass.n, first);
    };
    const bool is_fast = is_aligned(pass.acc, 16) && is_aligned(x, 4 * sizeof(G));
    launch_tiles(is_fast ? pass.n / kTileElements : 0, blocks_for(pass.n, kTileElements), axpy_kernel<G, true>,
                 axpy_kernel<G, false>, launch);
  });
}

void run(OktopkCudaContext& context, std::uint32_t limit, const OktopkCudaPass& pass) {
  const std::size_t bytes = pass.n * sizeof(float);
  switch (limit) {
    case oktopk_cuda_read:
      return read(context, pass.acc, pass.n);
    case oktopk_cuda_copy:
      return OKTOPK_CUDA(cudaMemcpyAsync(pass.acc, pass.gradient, bytes, cudaMemcpyDeviceToDevice, context.stream));
    case oktopk_cuda_set:
      return OKTOPK_CUDA(cudaMemsetAsync(pass.acc, 0, bytes, context.stream));
    case oktopk_cuda_axpy:
      return axpy(context, pass);
    default:
      throw CudaFailure(cudaErrorInvalidValue, "limit " + std::to_string(limit) + ", but it must be in 0..3");
  }
}

}  // namespace

void limit_pass(OktopkCudaContext& context, std::uint32_t limit, const OktopkCudaPass& pass) {
  if (pass.n == 0) return;
  begin_timing(context);
  run(context, limit, pass);
  check_launch("limit_pass");
  end_timing(context);
}

}  // namespace oktopk::cuda
