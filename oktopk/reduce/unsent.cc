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
  SparseVector entries;
  device_.select_at_least(memory.values, 0, 0.0F, entries);
  for (Index& place : entries.idx) place = static_cast<Index>(memory.index(place));
  residual_.add(entries);
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

void Unsent::write(StateWriter& state) const {
  const std::span<const float> residual = values();
  state.put_filled(residual.size(), sizeof(float), [&](std::byte* to) { device_.read(residual, to); });
  const OwnerMemory remembered = memory();
  state.put(remembered.region.begin, remembered.tile, remembered.stride);
  write_memory(state);
}

void Unsent::write_memory(StateWriter& state) const {
  const std::span<const float> remembered = memory().values;
  state.put_filled(remembered.size(), sizeof(float), [&](std::byte* to) { device_.read(remembered, to); });
}

SavedUnsent SavedUnsent::read(StateReader& state) {
  SavedUnsent saved{.residual = state.take_all_finite<float>("residual")};
  saved.layout.region.begin = state.take<Index>();
  saved.layout.tile = state.take<Index>();
  saved.layout.stride = state.take<Index>();
  require(saved.layout.tile > 0 && saved.layout.stride > 0, "state: owner memory in tiles of ", saved.layout.tile,
          " values, ", saved.layout.stride, " apart");
  saved.memory = state.take_all_finite<float>("owner memory");
  return saved;
}

SparseVector SavedUnsent::remembered(Index n, float scale) const {
  SparseVector entries;
  for (std::size_t place = 0; place < memory.size(); ++place) {
    if (memory[place] == 0) continue;
    require(layout.index(place) < n, "its owner memory does not fit n = ", n);
    entries.push_back(static_cast<Index>(layout.index(place)), scale * memory[place]);
  }
  return entries;
}

void Unsent::spoil(bool is_comm_dead) {
  is_spoilt_ = true;
  is_comm_dead_ = is_comm_dead;
}

void Unsent::check_sound() const {
  if (is_spoilt_) fail<CommError>("reducer: an earlier step failed half-way: ", way_out(is_comm_dead_));
}

}  // namespace oktopk
