// SPDX-License-Identifier: Apache-2.0
// The mass that a rank owes to the weights: its residual, and the memory of the region that it owns. COST: O(n) per
// call, no messages.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/residual.h"
#include "oktopk/base/state.h"
#include "oktopk/device/device.h"

namespace oktopk {

// The unsent values in a state, with any options and of any rank.
struct SavedUnsent {
  std::vector<float> residual;
  MemoryLayout layout;
  std::vector<float> memory;

  static SavedUnsent read(StateReader& state);  // UsageError where they make no sense
  // scale * memory, by index. UsageError where an index is not below n.
  SparseVector remembered(Index n, float scale) const;
};

class Unsent {
 public:
  // REQUIRES: device outlives the object.
  Unsent(const Device& device, Index n) : device_(device), residual_(device, n) {}

  // From now on this algorithm's memory is the owner memory. REQUIRES: it outlives the object or the next call.
  void belongs_to(Allreduce& owner) { owner_ = &owner; }

  Residual& residual() { return residual_; }
  std::span<const float> values() const { return residual_.values(); }
  OwnerMemory memory() const { return owner_->memory(); }

  // Whether anything may be unsent on any rank. O(1), equal on all ranks.
  bool may_exist() const { return may_exist_; }
  void set_may_exist(bool may) { may_exist_ = may; }

  // As Reducer::take_unsent() and give_unsent().
  void take(std::span<float> out);
  void give(std::span<const float> values);

  void subtract_from(std::span<float> x) const;  // x -= residual
  double norm() const;                           // of residual and owner memory
  void multiply(float factor);
  void fold_memory();  // moves the owner memory into the residual
  void clear();
  void restore(std::span<const float> residual, bool may_exist, bool is_spoilt);  // as a snapshot or a state had it

  // For a state, which SavedUnsent reads; the memory's values alone, for a copy that nobody else reads.
  void write(StateWriter& state) const;
  void write_memory(StateWriter& state) const;

  // After a step that failed half-way the mass is wrong: all calls fail until clear().
  void spoil(bool is_comm_dead);
  bool is_spoilt() const { return is_spoilt_; }
  void check_sound() const;  // CommError if spoilt

 private:
  void require_size(std::string_view what, std::size_t size) const;

  const Device& device_;
  Residual residual_;
  Allreduce* owner_ = nullptr;
  bool may_exist_ = false;
  bool is_spoilt_ = false;
  bool is_comm_dead_ = false;
};

}  // namespace oktopk
