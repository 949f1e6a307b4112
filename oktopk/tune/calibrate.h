// SPDX-License-Identifier: Apache-2.0
// Measures the profile that a tuner decides by, on the ranks and the network at hand: the network
// by timed rounds of messages (network_prices.h), the processor by the kernels of a step
// (kernel_prices.h). Every number is reduced over the ranks, so that all ranks hold the same bits
// and decide alike. COST: about `budget` seconds, and 2 * values floats while it runs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/device/device.h"
#include "oktopk/tune/profile.h"
#include "oktopk/tune/robust.h"

namespace oktopk {

// Equal on all ranks, but for the clock.
struct CalibrateOptions {
  double budget = 0.15;  // seconds, half of it for the network
  Clock now = {};        // of this rank; empty: the steady clock
  bool kernels = true;   // false: the processor's prices are those of `assumed`
  Profile assumed = {};
  // Ranks 0..g-1 share a host, g..2g-1 the next, and so on. Where 1 < g < P, hosts, what is inside
  // them, and one rank of each host alone are measured apart. 1: hosts make no difference.
  int ranks_per_host = 1;
  std::size_t values = std::size_t{1} << 22;  // of the passes over gradient values
  CpuOptions cpu = {};                        // threads that share them
  // Measured by the caller, on this rank; the dearest rank's counts. On all ranks or on none.
  std::optional<ExternalPrice> external_dense = std::nullopt;
};

// Collective. P = 1: the network's prices are 0, and nothing is sent. UsageError on all ranks where
// their options differ.
Profile calibrate(Communicator& comm, const CalibrateOptions& options = {});

}  // namespace oktopk
