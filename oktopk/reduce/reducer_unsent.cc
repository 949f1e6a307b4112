// SPDX-License-Identifier: Apache-2.0
// What a Reducer owes to the weights (reducer.h): this rank's residual and its owner memory, looked
// at, dropped, or moved to Reducers of another layout. So does its place in the schedules. O(n), no
// messages.
#include <algorithm>
#include <bit>
#include <cmath>

#include "oktopk/base/error.h"
#include "oktopk/reduce/inspect.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {
namespace {

// The sum of the squares. COST: one pass of the device's, 16 sums side by side.
double squares(const Device& device, std::span<const float> x) {
  const Moments m = device.moments(x);
  return static_cast<double>(x.size()) * (m.standard_deviation * m.standard_deviation + m.mean * m.mean);
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
  require(x.size() == residual_.size(), "reducer: ", x.size(), " values, but n = ", residual_.size());
  device_->accumulate({x, residual(), -1.0F});
}

double Reducer::unsent_norm() const {
  return std::sqrt(squares(*device_, residual()) + squares(*device_, memory().values));
}

void Reducer::take_unsent(std::span<float> out) {
  require(out.size() == residual_.size(), "take_unsent: room for ", out.size(), " values, but n = ", residual_.size());
  check_sound();
  fold_memory();
  std::ranges::copy(residual(), out.begin());
  residual_.clear();
  has_unsent_ = false;
}

void Reducer::give_unsent(std::span<const float> values) {
  require(values.size() == residual_.size(), "give_unsent: ", values.size(), " values, but n = ", residual_.size());
  check_sound();
  const auto before = residual();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(before[i] + values[i])) continue;
    fail<UsageError>("give_unsent: value ", i, " is ", digits(values[i]), " where the residual is ", digits(before[i]),
                     ", but both and their sum must be finite");
  }
  residual_.accumulate(0, values);
  has_unsent_ = true;
}

Reducer::Pace Reducer::pace() const {
  const AdaptiveDensity::Words words = adaptive_.words();
  const double all = std::max<double>(n(), 1);
  return {.steps = steps_,
          .adaptive_steps = words[1],
          .density = std::bit_cast<double>(words[0]) / all,
          .spent = static_cast<double>(words[2]) / all};
}

// A budget bounds what was spent by what was allowed, so rounding cannot pass it (resume()).
void Reducer::begin_at(const Pace& pace) {
  require(steps_ == 0, "begin_at: ", steps_, " steps were made, but it is for a new reducer");
  require(pace.density >= 0 && pace.density <= 1, "begin_at: density = ", pace.density, ", but it must be in [0, 1]");
  require(pace.spent >= 0 && pace.spent <= static_cast<double>(pace.adaptive_steps), "begin_at: ", pace.spent,
          " entries per value were spent in ", pace.adaptive_steps, " steps, but it must be at most 1 per step");
  const double all = n();
  adaptive_.resume({std::bit_cast<std::uint64_t>(pace.density * all), pace.adaptive_steps,
                    static_cast<std::uint64_t>(std::llround(pace.spent * all))});
  steps_ = pace.steps;
}

}  // namespace oktopk
