// SPDX-License-Identifier: Apache-2.0
// How elements leave a block of preset `slots` (K1 and K2): the block keeps their rounding errors, and its list gets
// their entries. Included by .cu files only.
#pragma once

#include "oktopk/gpu/kernels/elements.cuh"
#include "oktopk/gpu/kernels/slots.cuh"

namespace oktopk::cuda {

// The value that travels for x.
__device__ inline float travelling(float x) {
  return __uint_as_float(slots::float_bits_of(slots::value_of(__float_as_uint(x))));
}

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
        if (place >= slots::kMostOfBlock) return put_back(r, i);
        out.entries[at * slots::kMostOfBlock + place] =
            slots::entry_of(r * kRow + 4 * threadIdx.x + i, __float_as_uint(x[r][i]));
      });
  if (threadIdx.x == 0) out.counts[at] = static_cast<std::uint16_t>(min(list.y, slots::kMostOfBlock));
}

}  // namespace oktopk::cuda
