// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/unsent.h"

#include <cmath>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/reduce/notes.h"

namespace oktopk {
namespace {

double squares(const Device& device, std::span<const float> x) {
  const Moments m = device.moments(x);
  return static_cast<double>(x.size()) * (m.standard_deviation * m.standard_deviation + m.mean * m.mean);
}

}  // namespace

void Unsent::require_size(std::string_view what, std::size_t size) const {
  require(size == residual_.size(), what, ": ", size, " values, but n = ", residual_.size());
}

void Unsent::take(std::span<float> out) {
  require_size("take_unsent", out.size());
  check_sound();
  fold_memory();
  device_.read(values(), out.data());
  residual_.assign();
  may_exist_ = false;
}

void Unsent::give(std::span<const float> given) {
  require_size("give_unsent", given.size());
  check_sound();
  Uninitialised<float> sum(given.size());
  device_.read(values(), sum.data());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const float before = std::exchange(sum[i], sum[i] + given[i]);
    if (std::isfinite(sum[i])) continue;
    fail<UsageError>("give_unsent: value ", i, " is ", digits(given[i]), " where the residual is ", digits(before),
                     ", but both and their sum must be finite");
  }
  residual_.assign(sum);
  may_exist_ = true;
}

void Unsent::subtract_from(std::span<float> x) const {
  require_size("reducer", x.size());
  device_.accumulate({x, values(), -1.0F});
}

double Unsent::norm() const { return std::sqrt(squares(device_, values()) + squares(device_, memory().values)); }

void Unsent::multiply(float factor) {
  residual_.multiply(factor);
  owner_->scale_memory(device_, factor);
}

void Unsent::fold_memory() {
  const OwnerMemory memory = owner_->memory();
  residual_.accumulate(memory.region.begin, memory.values);
  owner_->scale_memory(device_, 0);
}

void Unsent::clear() {
  is_spoilt_ = may_exist_ = false;
  owner_->scale_memory(device_, 0);
  residual_.assign();
}

void Unsent::restore(std::span<const float> residual, bool may_exist, bool is_spoilt) {
  residual_.assign(residual);
  may_exist_ = may_exist;
  is_spoilt_ = is_spoilt;
}

void Unsent::spoil(bool is_comm_dead) {
  is_spoilt_ = true;
  is_comm_dead_ = is_comm_dead;
}

void Unsent::check_sound() const {
  if (is_spoilt_) fail<CommError>("reducer: an earlier step failed half-way: ", way_out(is_comm_dead_));
}

}  // namespace oktopk
