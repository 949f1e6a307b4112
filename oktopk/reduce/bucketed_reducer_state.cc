// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a BucketedReducer: one state holds those of all buckets. They are loaded bucket by bucket, each
// on all ranks or on none; when one is refused, the buckets before it go back.
#include "oktopk/base/error.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {

void BucketedReducer::write(StateWriter& state) const {
  check_idle("save");
  require_closed("save()");
  state.put_text(description_);
  for (const auto& reducer : reducers_) state.put_state([&](StateWriter& inner) { state_of(*reducer).write(inner); });
}

// The states of the buckets, not yet looked into.
std::vector<std::span<const std::byte>> BucketedReducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  require_saver(state, "a BucketedReducer");
  require_same(
      state.take_text(), description_,
      "; the fusion policies search and optimal plan buckets for P ranks: where P may change, take whole, tensor "
      "or size");
  std::vector<std::span<const std::byte>> states;
  for (std::size_t b = 0; b < buckets_.size(); ++b) states.push_back(state.take_view());
  state.finish();
  return states;
}

// Before the first exchange: the same tensors, buckets and calls, on all ranks. The first bucket's Reducer compares
// calls and options whenever a load() has replaced its state.
void BucketedReducer::agree(std::string_view call) {
  if (!agreed_) require_equal(comm_, "bucketed reducer", description_ + ", call " + std::string(call), work_);
  agreed_ = true;
  if (call != kStepCall) reducers_.front()->agree(call);
}

// load(bucket) for all, or for none.
void BucketedReducer::load_buckets(const std::function<void(std::size_t bucket)>& load) {
  std::size_t loaded = 0;
  log_->last = {};
  try {
    for (; loaded < buckets_.size(); ++loaded) {
      reducers_[loaded]->copy_to(snapshots_[loaded]);
      load(loaded);
    }
  } catch (const UsageError&) {
    while (loaded-- > 0) reducers_[loaded]->go_back(snapshots_[loaded]);
    throw;
  }
  sent_.clear();
}

void BucketedReducer::load(std::span<const std::byte> state) {
  check_idle("load");
  require_closed("load()");
  agree("load()");
  std::vector<std::span<const std::byte>> states;
  agree_on_success(comm_, work_, [&] { states = read(state); },
                   {.kind = Call::Kind::load, .has_hash = state_of(*reducers_.front()).check.is_on()});
  load_buckets([&](std::size_t b) { reducers_[b]->load(states[b]); });
}

// Each state is read once, and all buckets take their part of it.
void BucketedReducer::load_all(std::size_t count, const ReadState& read_state) {
  check_idle("load_all");
  require_closed("load_all()");
  agree("load_all()");
  const auto rank = static_cast<std::size_t>(comm_.rank());
  const auto owns = [&] {
    const auto states = read(read_state(rank));
    for (std::size_t b = 0; b < states.size(); ++b)
      if (!state_of(*reducers_[b]).is_own(states[b])) return false;
    return true;
  };
  if (all_own(comm_, work_, count, owns)) return load(read_state(rank));
  std::vector<StateMerge> merges;
  agree_on_success(comm_, work_, [&] {
    for (const auto& reducer : reducers_) merges.emplace_back(state_of(*reducer), count);
    for (std::size_t r = 0; r < count; ++r) {
      const auto states = read(read_state(r));
      for (std::size_t b = 0; b < states.size(); ++b) merges[b].add(states[b]);
    }
  });
  load_buckets([&](std::size_t b) { reducers_[b]->restore([&] { return merges[b].finish(); }); });
}

}  // namespace oktopk
