// SPDX-License-Identifier: Apache-2.0
// What a rank's processor charges, while all ranks compute at once:
//
//   gamma   coo32+fp32 frames of 4 peers' shares (1% of 512 Ki positions) encoded, opened, decoded
//           and summed with the own share, per entry of the five
//   index, value   what another coding takes to encode and decode the same, beyond coo32 and fp32
//   delta   acc += x, per value
//   sigma   the same with the selection of 1% in one pass, per value
//
// The least over the repetitions; of the ranks the slowest. COST: about `budget` seconds and as
// long again to fill 2 * `values` floats.
#pragma once

#include <array>
#include <cstddef>

#include "oktopk/comm/communicator.h"
#include "oktopk/device/device.h"
#include "oktopk/tune/robust.h"

namespace oktopk {

struct KernelPrices {
  double gamma = 0;
  double delta = 0;
  double sigma = 0;
  std::array<double, 6> index = {};  // in enum order; `all` has no indices to code: 0
  std::array<double, 4> value = {};
};

struct KernelOptions {
  double budget = 0.1;
  std::size_t values = std::size_t{1} << 22;  // of the passes: more than caches hold
  CpuOptions cpu = {};
};

// Collective; equal on all ranks.
KernelPrices measure_kernels(Communicator& comm, const Clock& now, const KernelOptions& options);

}  // namespace oktopk
