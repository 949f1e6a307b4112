// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/subject.h"

#include <numeric>

#include "oktopk/base/error.h"
#include "oktopk/reduce/nodes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {

std::unique_ptr<Synchroniser> make_synchroniser(Communicator& comm, Index n, const ReducerOptions& options, int group) {
  const ReducerOptions used = only_used(options);  // trials of several presets share their options
  if (group == 1) return std::make_unique<Reducer>(comm, n, used);
  return std::make_unique<NodeReducer>(comm, n, used, NodeOptions{.group = group});
}

Subject::Subject(Synchroniser& sync)
    : sync_(sync), flat_(dynamic_cast<Reducer*>(&sync)), node_(dynamic_cast<NodeReducer*>(&sync)) {
  require(flat_ != nullptr || node_ != nullptr, "laws: neither a Reducer nor a NodeReducer");
}

const Reducer* Subject::holder() const { return flat_ != nullptr ? flat_ : node_->reducer(); }

std::size_t Subject::k() const { return flat_ != nullptr ? flat_->k() : node_->k(); }

Prediction Subject::predict(const Problem& problem) const {
  return flat_ != nullptr ? state_of(*flat_).predict(problem) : predict_step(*node_, problem);
}

void Subject::forget() {
  if (flat_ != nullptr) flat_->forget();
  if (node_ != nullptr) node_->forget();
}

std::vector<int> Subject::leaders() const {
  if (node_ != nullptr) return {node_->leaders().begin(), node_->leaders().end()};
  std::vector<int> all(static_cast<std::size_t>(sync_.comm().size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<float> Subject::residual() const {
  if (holder() == nullptr) return std::vector<float>(n(), 0.0F);
  return from_device(state_of(*holder()).unsent.values());
}

std::vector<float> Subject::from_device(std::span<const float> values) const {
  std::vector<float> host(values.size());
  state_of(*holder()).setting.options.device->read(values, host.data());
  return host;
}

Subject::Memory Subject::memory() const {
  if (holder() == nullptr) return {};
  const OwnerMemory memory = state_of(*holder()).unsent.memory();
  return {memory, from_device(memory.values)};
}

CooView Subject::selection() const { return holder() == nullptr ? CooView{} : CooView(holder()->sent()); }

const Outcome& Subject::outcome() const { return holder() == nullptr ? nothing_ : state_of(*holder()).outcome; }

}  // namespace oktopk
