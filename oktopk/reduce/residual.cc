// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/residual.h"

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {

std::span<const float> Residual::values() const {
  settle();
  return values_;
}

void Residual::settle() const {
  device_.clear_at(values_, 0, to_clear_);
  to_clear_.clear();
}

void Residual::clear_later(std::span<const Index> idx) {
  if (!to_clear_.empty()) settle();
  to_clear_.assign(idx.begin(), idx.end());
}

void Residual::add(CooView v) {
  if (v.empty()) return;
  settle();
  device_.add_at(values_, 0, v);
}

void Residual::accumulate(Index begin, std::span<const float> values) {
  if (values.empty()) return;
  settle();
  device_.accumulate({values_.subspan(begin, values.size()), values});
}

void Residual::multiply(float factor) {
  device_.multiply(values_, factor);  // zero times a factor: what is due stays due
}

void Residual::assign(std::span<const float> values) {
  OKTOPK_DCHECK(values.size() == values_.size());
  std::copy(values.begin(), values.end(), values_.begin());
  to_clear_.clear();
}

void Residual::clear() {
  std::fill(values_.begin(), values_.end(), 0.0F);
  to_clear_.clear();
}

void settle_dense(Residual& residual, const Outcome& outcome) {
  outcome.dense_returned.empty() ? residual.clear() : residual.assign(outcome.dense_returned);
}

namespace {

// dense: everything was applied, but for rounding errors.
class NoResidual final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::none; }
  void settle(Residual& residual, CooView, const Outcome& outcome) override { settle_dense(residual, outcome); }
};

// Ok-Topk's Algorithm 2: only what was both sent and applied is cleared; what was sent in vain
// stays with the sender, in full. Rounding errors count only where they were applied: elsewhere the
// sender still has the exact value.
class SenderKeeps final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::sender_keeps; }
  void settle(Residual& residual, CooView, const Outcome& outcome) override {
    residual.clear_later(outcome.shared.idx);
    intersect(outcome.returned, outcome.update.idx, applied_);
    residual.add(applied_);
  }

 private:
  SparseVector applied_;
};

// For algorithms that apply all that is sent; and for owner memory: what was sent belongs to the
// owner of its region, who applies it or remembers it (DoubleSqueeze's two-sided compensation with
// a sharded server). What comes back is rounding errors made on the way, and the memory of a region
// that this rank no longer owns.
class SentIsGone final : public ResidualRule {
 public:
  explicit SentIsGone(ResidualKind kind) : kind_(kind) {}
  ResidualKind kind() const override { return kind_; }
  void settle(Residual& residual, CooView sent, const Outcome& outcome) override {
    residual.clear_later(sent.idx);
    residual.add(outcome.returned);
  }

 private:
  ResidualKind kind_;
};

// For algorithms that prune on the way: whoever drops a partial sum keeps it.
class HolderKeeps final : public ResidualRule {
 public:
  ResidualKind kind() const override { return ResidualKind::holder_keeps; }
  void settle(Residual& residual, CooView sent, const Outcome& outcome) override {
    residual.clear_later(sent.idx);
    residual.add(outcome.returned);
    residual.add(outcome.dropped);
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
    case ResidualKind::owner_memory:
      return std::make_unique<SentIsGone>(kind);
    case ResidualKind::holder_keeps:
      return std::make_unique<HolderKeeps>();
  }
  fail<UsageError>("make_residual_rule: unknown kind");
}

}  // namespace oktopk
