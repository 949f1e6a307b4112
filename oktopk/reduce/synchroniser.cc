// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/synchroniser.h"

#include <algorithm>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"

namespace oktopk {
namespace {

[[noreturn]] void refuse_halves(std::string_view call) {
  fail<UsageError>(call,
                   ": only a Reducer makes steps in two halves: use a Reducer of the flat gradient, or an "
                   "ElasticReducer, whose step() commits or rolls back on all ranks");
}

}  // namespace

Update Synchroniser::propose(Gradient /*gradient*/, float /*scale*/) { refuse_halves("propose()"); }
Update Synchroniser::propose_flush() { refuse_halves("propose_flush()"); }
void Synchroniser::commit() { refuse_halves("commit()"); }
void Synchroniser::roll_back() { refuse_halves("roll_back()"); }

Bytes Synchroniser::save() const {
  return write_state([&](StateWriter& state) { write(state); });
}

void Synchroniser::compare(std::string_view who, std::string_view settings) {
  Workspace work;
  require_equal(comm(), who, settings, work);
}

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  check += other.check;
  select += other.select;
  exchange += other.exchange;
  settle += other.settle;
  inside += other.inside;
  return *this;
}

std::span<const float> DenseMean::show(const Update& update) {
  require(!update.is_dense() || update.dense.size() == values_.size(), "dense mean: an update of ", update.dense.size(),
          " values, but n = ", values_.size());
  require(update.sparse.empty() || update.sparse.idx.back() < values_.size(), "dense mean: an update of index ",
          update.sparse.empty() ? 0 : update.sparse.idx.back(), ", but n = ", values_.size());
  if (update.is_dense()) {
    std::ranges::copy(update.dense, values_.begin());
    all_written_ = true;
    return values_;
  }
  if (all_written_)
    std::ranges::fill(values_, 0.0F);
  else
    device_->clear_at(values_, 0, written_);
  all_written_ = false;
  written_.assign(update.sparse.idx.begin(), update.sparse.idx.end());
  device_->add_at(values_, 0, update.sparse);
  return values_;
}

}  // namespace oktopk
