// SPDX-License-Identifier: Apache-2.0
// How a block reads its tile: 256 threads, each with four vectors of four elements, all loads before the first use.
// Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace oktopk::cuda {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr unsigned kRows = 4;                     // vectors of four elements per thread
constexpr unsigned kRow = 4 * kThreads;           // elements
constexpr unsigned kTileElements = kRows * kRow;  // 4096

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffU; }

__device__ inline void load_vector(const float* x, float (&out)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(x);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
template <class Half>
__device__ inline void load_vector(const Half* x, float (&out)[4]) {
  union {
    uint2 word;
    Half half[4];
  } v;
  v.word = *reinterpret_cast<const uint2*>(x);
  for (int i = 0; i < 4; ++i) out[i] = to_float(v.half[i]);
}

// kVector: four elements at once, from an address that is a multiple of their size; all of them exist. Otherwise one by
// one, and those from n on are zero.
template <bool kVector, class T>
__device__ inline void load_four(const T* x, std::uint64_t at, std::uint64_t n, float (&out)[4]) {
  if constexpr (kVector) {
    load_vector(x + at, out);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = at + i < n ? to_float(x[at + i]) : 0.0F;
  }
}

template <bool kVector>
__device__ inline void store_four(float* x, std::uint64_t at, std::uint64_t n, const float (&v)[4]) {
  if constexpr (kVector) {
    *reinterpret_cast<float4*>(x + at) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at + i < n) x[at + i] = v[i];
  }
}

// A bit for each of the thread's elements, row by row: whether its magnitude is not below the bound, a finite number.
// NaN is not below anything.
__device__ inline std::uint32_t marks_of(const float (&x)[kRows][4], float bound) {
  std::uint32_t marks = 0;
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (!(fabsf(x[r][i]) < bound)) marks |= 1U << (4 * r + i);
  return marks;
}

// Calls write(place, row, i) for each of the thread's marked elements. Places begin where reserve(number) says, which
// one thread calls with the number of all marked elements of the block, and follow the order of the elements in the
// tile. Returns begin and number, the same in all threads; {0xffffffff, 0}, with nothing written, if reserve() says
// 0xffffffff. Every thread of the block calls it.
template <class Reserve, class Write>
__device__ inline uint2 compact(std::uint32_t marks, const Reserve& reserve, const Write& write) {
  __shared__ std::uint32_t warp_counts[kWarps];
  __shared__ std::uint32_t reserved;
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  std::uint32_t counts = 0;  // of the four rows, eight bits each: a warp has at most 128 elements of a row
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) counts |= __popc(marks >> (4 * r) & 0xfU) << (8 * r);
  std::uint32_t before = counts;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) warp_counts[warp] = before;
  before -= counts;
  __syncthreads();
  // Rows 0 and 2, and rows 1 and 3, in halves of a word.
  std::uint32_t even = 0, odd = 0, all_even = 0, all_odd = 0;
#pragma unroll
  for (unsigned w = 0; w < kWarps; ++w) {
    const std::uint32_t c = warp_counts[w];
    const std::uint32_t e = c & 0x00ff00ffU, o = (c >> 8) & 0x00ff00ffU;
    all_even += e, all_odd += o;
    if (w < warp) even += e, odd += o;
  }
  const std::uint32_t totals[kRows] = {all_even & 0xffffU, all_odd & 0xffffU, all_even >> 16, all_odd >> 16};
  const std::uint32_t total = totals[0] + totals[1] + totals[2] + totals[3];
  if (threadIdx.x == 0) reserved = reserve(total);
  __syncthreads();
  if (reserved == kAllLanes) return make_uint2(kAllLanes, 0);
  if (marks != 0) {
    even += before & 0x00ff00ffU;
    odd += (before >> 8) & 0x00ff00ffU;
    const std::uint32_t rows[kRows] = {even & 0xffffU, odd & 0xffffU, even >> 16, odd >> 16};
    std::uint32_t row_begin = reserved;
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      std::uint32_t at = row_begin + rows[r];
      row_begin += totals[r];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        if ((marks >> (4 * r + i) & 1U) != 0) write(at++, r, i);
    }
  }
  return make_uint2(reserved, total);
}

// Vectors need addresses that are multiples of their size.
inline bool is_aligned(const void* x, std::size_t by) { return reinterpret_cast<std::uintptr_t>(x) % by == 0; }

// Launches `vector` for the first `whole` of `tiles` tiles and `scalar` for the others, each by launch(kernel, first,
// number).
template <class Kernel, class Launch>
void launch_tiles(std::uint64_t whole, std::uint64_t tiles, Kernel vector, Kernel scalar, const Launch& launch) {
  if (whole > 0) launch(vector, std::uint64_t{0}, static_cast<unsigned>(whole));
  if (whole < tiles) launch(scalar, whole, static_cast<unsigned>(tiles - whole));
}

}  // namespace oktopk::cuda
