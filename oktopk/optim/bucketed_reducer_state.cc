// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a BucketedReducer: the states of its buckets in one. They are loaded bucket
// by bucket, each on all ranks or on none; when one is refused, those before it go back.
#include "oktopk/base/error.h"
#include "oktopk/optim/bucketed_reducer.h"

namespace oktopk {

Bytes BucketedReducer::save() const {
  check_idle("save");
  StateWriter state;
  state.put_text(description());
  for (const auto& reducer : reducers_) state.put_bytes(reducer->save());
  return state.seal();
}

// The states of the buckets, not yet looked into.
std::vector<Bytes> BucketedReducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  const std::string saved = state.take_text();
  require(saved == description(), "state: saved with other tensors or buckets (", saved, ")");
  std::vector<Bytes> states;
  for (std::size_t b = 0; b < buckets_.size(); ++b) states.push_back(state.take_bytes());
  state.finish();
  return states;
}

// load(bucket) for all, or for none.
template <class Load>
void BucketedReducer::load_buckets(const Load& load) {
  std::size_t loaded = 0;
  last_ = {};
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
  std::vector<Bytes> states;
  agree_on_success(comm_, work_, [&] { states = read(state); });
  load_buckets([&](std::size_t b) { reducers_[b]->load(states[b]); });
}

void BucketedReducer::load_all(std::span<const Bytes> states) {
  check_idle("load_all");
  std::vector<std::vector<Bytes>> by_bucket(buckets_.size());
  agree_on_success(comm_, work_, [&] {
    for (const Bytes& state : states) {
      std::vector<Bytes> buckets = read(state);
      for (std::size_t b = 0; b < buckets.size(); ++b)
        by_bucket[b].push_back(std::move(buckets[b]));
    }
  });
  load_buckets([&](std::size_t b) { reducers_[b]->load_all(by_bucket[b]); });
}

}  // namespace oktopk
