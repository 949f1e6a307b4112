// SPDX-License-Identifier: Apache-2.0
// The update as all n values, for callers who cannot use entries (a framework's gradient buffer).
// Kept from step to step, so that only what changed is written: the entries of the last update go
// to zero, those of the new one come in. COST: O(k) writes per sparse step, n per dense one.
#pragma once

#include <memory>
#include <span>

#include "oktopk/base/bytes.h"
#include "oktopk/device/device.h"
#include "oktopk/reduce/update.h"

namespace oktopk {

class DenseMean {
 public:
  explicit DenseMean(Index n) : values_(n, 0.0F) {}

  // The mean as n values; good until the next call. A skipped step gives zeros.
  std::span<const float> show(const Update& update);

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  Uninitialised<float> values_;
  Uninitialised<Index> written_;  // where values_ may not be zero; unused after a dense update
  bool all_written_ = false;
};

}  // namespace oktopk
