// SPDX-License-Identifier: Apache-2.0
// What a Reducer owes to the weights (reducer.h): this rank's residual and its owner memory, looked
// at, dropped, or moved to Reducers of another layout. O(n), no messages.
#include <algorithm>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/optim/inspect.h"
#include "oktopk/optim/reducer.h"

namespace oktopk {
namespace {

// The sum of the squares. COST: one pass of the device's, 16 sums side by side.
double squares(const Device& device, std::span<const float> x) {
  const Moments m = device.moments(x);
  return static_cast<double>(x.size()) *
         (m.standard_deviation * m.standard_deviation + m.mean * m.mean);
}

}  // namespace

void Reducer::fold_memory() {
  const OwnerMemory memory = allreduce_->memory();
  residual_.accumulate(memory.region.begin, memory.values);
  allreduce_->scale_memory(*device_, 0);
}

void Reducer::forget() {
  spoilt_ = false;
  has_unsent_ = false;
  allreduce_->scale_memory(*device_, 0);
  residual_.clear();
}

void Reducer::subtract_unsent(std::span<float> x) const {
  require(x.size() == residual_.size(), "reducer: ", x.size(),
          " values, but n = ", residual_.size());
  device_->accumulate({x, residual(), -1.0F});
}

double Reducer::unsent_norm() const {
  return std::sqrt(squares(*device_, residual()) + squares(*device_, memory().values));
}

void Reducer::take_unsent(std::span<float> out) {
  require(out.size() == residual_.size(), "take_unsent: room for ", out.size(),
          " values, but n = ", residual_.size());
  check_sound();
  fold_memory();
  std::ranges::copy(residual(), out.begin());
  residual_.clear();
  has_unsent_ = false;
}

void Reducer::give_unsent(std::span<const float> values) {
  require(values.size() == residual_.size(), "give_unsent: ", values.size(),
          " values, but n = ", residual_.size());
  check_sound();
  const auto before = residual();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(before[i] + values[i])) continue;
    fail<UsageError>("give_unsent: value ", i, " is ", digits(values[i]), " where the residual is ",
                     digits(before[i]), ", but both and their sum must be finite");
  }
  residual_.accumulate(0, values);
  has_unsent_ = true;
}

}  // namespace oktopk
