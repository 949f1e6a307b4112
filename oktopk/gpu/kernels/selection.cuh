// SPDX-License-Identifier: Apache-2.0
// The lists that the pass of a selection (pass.cu) leaves for the kernels that put its entries in order (select.cu).
#pragma once

#include "oktopk/gpu/kernels/context.cuh"

namespace oktopk::cuda {

// Two parallel lists, tile by tile; the index is an offset in its tile.
struct Staging {
  std::uint16_t* offset;
  float* val;
  uint2* tile;            // of each tile: its begin in the lists, and its count
  std::uint64_t* counts;  // of each tile, in the upper half: what the scan adds up
  SelectionState* state;
  std::uint32_t room;
};

// Runs the pass: accumulates, and appends the entries that reach the bound to the lists.
void run_selecting_pass(OktopkCudaContext& context, const OktopkCudaPass& pass, std::uint32_t bound,
                        const Staging& out);

}  // namespace oktopk::cuda
