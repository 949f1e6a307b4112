// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/residual.h"

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/sparse/set_ops.h"

namespace oktopk {
namespace {

// dense: everything was applied.
class NoResidual final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::none; }
  void settle(const Device&, std::span<float> acc, CooView, const Outcome&) const override {
    std::fill(acc.begin(), acc.end(), 0.0F);
  }
};

// Ok-Topk's Algorithm 2: only what was both sent and applied is cleared; what was sent in vain
// stays with the sender, in full. Rounding errors count only where they were applied: elsewhere the
// sender still has the exact value.
class SenderKeeps final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::sender_keeps; }
  void settle(const Device& device, std::span<float> acc, CooView,
              const Outcome& outcome) const override {
    device.clear_at(acc, 0, outcome.shared.idx);
    SparseVector applied;
    intersect(outcome.returned, outcome.update.idx, applied);
    device.add_at(acc, 0, applied);
  }
};

// For algorithms that apply all that is sent.
class AllSentCleared final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::all_sent_cleared; }
  void settle(const Device& device, std::span<float> acc, CooView sent,
              const Outcome& outcome) const override {
    device.clear_at(acc, 0, sent.idx);
    device.add_at(acc, 0, outcome.returned);
  }
};

// For algorithms that prune on the way: whoever drops a partial sum keeps it.
class HolderKeeps final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::holder_keeps; }
  void settle(const Device& device, std::span<float> acc, CooView sent,
              const Outcome& outcome) const override {
    device.clear_at(acc, 0, sent.idx);
    device.add_at(acc, 0, outcome.returned);
    device.add_at(acc, 0, outcome.dropped);
  }
};

// What was sent belongs to the owner of its region, who applies it or remembers it (DoubleSqueeze's
// two-sided compensation with a sharded server). What comes back is rounding errors made on the
// way, and the memory of a region that this rank no longer owns.
class OwnerMemoryRule final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::owner_memory; }
  void settle(const Device& device, std::span<float> acc, CooView sent,
              const Outcome& outcome) const override {
    device.clear_at(acc, 0, sent.idx);
    device.add_at(acc, 0, outcome.returned);
  }
};

}  // namespace

std::unique_ptr<ResidualRule> make_residual_rule(ResidualKind kind) {
  switch (kind) {
    case ResidualKind::none:
      return std::make_unique<NoResidual>();
    case ResidualKind::sender_keeps:
      return std::make_unique<SenderKeeps>();
    case ResidualKind::all_sent_cleared:
      return std::make_unique<AllSentCleared>();
    case ResidualKind::holder_keeps:
      return std::make_unique<HolderKeeps>();
    case ResidualKind::owner_memory:
      return std::make_unique<OwnerMemoryRule>();
  }
  fail<UsageError>("make_residual_rule: unknown kind");
}

}  // namespace oktopk
