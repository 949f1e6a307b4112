// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/residual.h"

#include <array>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/sparse/sum.h"

namespace oktopk {

std::span<const float> Residual::values() const {
  settle();
  return values_;
}

void Residual::settle() const {
  if (to_clear_.empty()) return;
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

void Residual::add_common(CooView v, std::span<const Index> idx) {
  intersect(v, idx, common_);
  add(common_);
}

void Residual::multiply(float factor) {
  device_.multiply(values_, factor);  // entries at to_clear_ may hold any value
}

void Residual::add_host(std::span<const float> host, float scale) {
  settle();
  const DeviceFloats staged = device_.allocate(host.size());
  const std::span<float> values(staged.get(), host.size());
  device_.write(values, host);
  device_.accumulate({values_, values, scale});
}

void Residual::assign(std::span<const float> host) {
  device_.write(values_, host);
  to_clear_.clear();
}

void settle_dense(Residual& residual, const Outcome& outcome) { residual.assign(outcome.dense_returned); }

namespace {

// Ok-Topk's Algorithm 2: only entries that were both sent and applied are cleared. A rounding error counts only where
// the entry was applied: elsewhere the sender still has the exact value.
void settle_sender_keeps(Residual& residual, CooView /*sent*/, const Outcome& outcome) {
  residual.clear_later(outcome.shared.idx);
  residual.add_common(outcome.returned, outcome.update.idx);
}

// Everything sent is applied, or (owner memory) belongs to the owner of its region, who applies or remembers it, as in
// DoubleSqueeze with a sharded server. Rounding errors return, and the memory of a region that this rank gave up.
void settle_sent(Residual& residual, CooView sent, const Outcome& outcome) {
  residual.clear_later(sent.idx);
  residual.add(outcome.returned);
}

// For algorithms that prune on the way: the rank that drops a partial sum keeps it.
void settle_holder_keeps(Residual& residual, CooView sent, const Outcome& outcome) {
  settle_sent(residual, sent, outcome);
  residual.add(outcome.dropped);
}

void settle_all(Residual& residual, CooView /*sent*/, const Outcome& outcome) { settle_dense(residual, outcome); }

constexpr std::array<ResidualRule, 5> kRules = {{
    {ResidualKind::none, "none", settle_all},
    {ResidualKind::sender_keeps, "sender_keeps", settle_sender_keeps, /*needs_shared=*/true},
    {ResidualKind::all_sent_cleared, "all_sent_cleared", settle_sent, false, /*takes_union=*/true},
    {ResidualKind::holder_keeps, "holder_keeps", settle_holder_keeps},
    {ResidualKind::owner_memory, "owner_memory", settle_sent, false, false, /*owner_remembers=*/true},
}};

}  // namespace

const ResidualRule& residual_rule(ResidualKind kind) { return kRules[static_cast<std::size_t>(kind)]; }

std::string_view to_string(ResidualKind kind) { return residual_rule(kind).name; }

ResidualKind find_residual(std::string_view name) { return find_row(kRules, "residual rule", name).kind; }

}  // namespace oktopk
