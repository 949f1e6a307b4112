// SPDX-License-Identifier: Apache-2.0
// The subject of a trial: a Reducer, or a NodeReducer, where only leaders hold a residual. Laws and bench see both
// through one interface, in which a rank that is no leader has an empty residual.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

// A Reducer for group 1, else a NodeReducer (group as in NodeOptions). Collective.
std::unique_ptr<Synchroniser> make_synchroniser(Communicator& comm, Index n, const ReducerOptions& options, int group);

class Subject {
 public:
  // REQUIRES: sync is a Reducer or a NodeReducer, and outlives the subject.
  explicit Subject(Synchroniser& sync);

  Synchroniser& sync() const { return sync_; }
  Index n() const { return sync_.n(); }
  std::size_t k() const;
  Prediction predict(const Problem& problem) const;
  void forget();

  // The ranks that select, increasing.
  std::vector<int> leaders() const;
  // The state of this rank's Reducer. A rank that is no leader has n zeros and nothing else.
  std::vector<float> residual() const;
  struct Memory : MemoryLayout {
    std::vector<float> values;
  };
  Memory memory() const;
  CooView selection() const;
  const Outcome& outcome() const;

 private:
  const Reducer* holder() const;
  std::vector<float> from_device(std::span<const float> values) const;

  Synchroniser& sync_;
  Reducer* flat_;
  NodeReducer* node_;
  Outcome nothing_;
};

}  // namespace oktopk
