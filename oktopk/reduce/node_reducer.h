// SPDX-License-Identifier: Apache-2.0
// Node-sum-first: ranks that share a host sum their gradients densely; one rank per host, its leader, does the sparse
// part with the other leaders and shares the update inside the host. A host then sends what one rank would send
// (docs/hierarchy.md).
//
//   every rank   notes: is any rank's gradient unfit?                      over all P ranks
//   every node   sum of scale * gradient at the leader                     dense, inside
//   leaders      Reducer::step of the node's sum: accumulate .. settle     sparse, outside
//   every node   the leader's update and its selection, to the others      sparse (dense), inside
//
// Residual, thresholds and owner memory belong to the leaders. The mean is over all P ranks, for any sizes of nodes.
// Sums inside a node run in an order fixed by n and the node's size. Memory: a leader has a Reducer's and n floats;
// another rank n floats; both up to n more while they sum. A node of one rank copies nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/reduce/reducer.h"

namespace oktopk {

struct NodeOptions {
  // 0: the ranks that share a host (Communicator::host) are a node. g >= 1: g consecutive ranks are a node; the last
  // node may be smaller.
  int group = 0;
};

class DensityPlan;
struct Nodes;
struct Prediction;
struct Problem;
class UpdateCheck;

class NodeReducer final : public Synchroniser {
 public:
  // Collective, unlike Reducer's: the ranks compare n and all options, and find their nodes. UsageError on every rank
  // when they differ or one rank's are unfit, or n > 2^32 - 1. REQUIRES: comm outlives the object.
  explicit NodeReducer(Communicator& comm, std::uint64_t n, const ReducerOptions& options = {},
                       const NodeOptions& node = {});
  ~NodeReducer() override;

  // As Reducer::step(). NanPolicy::local looks at the gradients of ranks that share a node, because their sum would not
  // tell which rank's gradient was not finite.
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // Drops what was not applied yet. Local, but all ranks should do it together.
  void forget();

  // The state of a leader holds that of its Reducer; the state of another rank has a few bytes. load() needs the same
  // nodes; load_all() takes the states of any nodes, and of Reducers.
  void load(std::span<const std::byte> state) override;
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;

  Communicator& comm() const override { return comm_; }
  Index n() const override { return n_; }
  std::size_t k() const;
  std::uint64_t steps() const;
  bool is_warm() const;  // the warm-up is over

  // The entries that this rank's node sent, on all its ranks.
  CooView sent() const override { return sent_; }
  // Subtracts the node's residual on its leader, nothing on other ranks.
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;
  StepTimes times() const override { return times_; }

  // The ranks that lead a node, increasing; equal on all ranks.
  std::span<const int> leaders() const;
  int node_size() const;
  // The Reducer of a leader; null on other ranks. Its metrics() count what leaves the host, without the notes of all
  // ranks. There are no metrics of the whole: most messages belong to the sum inside the node, in shared memory, and
  // would hide those that cross the wire. times() has the time of both.
  const Reducer* reducer() const { return reducer_.get(); }
  // To move unsent values and steps between reducers, on all ranks together.
  Reducer* reducer() { return reducer_.get(); }
  void set_steps(std::uint64_t steps);

 private:
  friend Prediction predict_step(const NodeReducer& reducer, const Problem& problem);  // nodes.h

  void choose(int group);
  bool begin_step(Gradient gradient, float scale);
  Update synchronise(Gradient gradient, float scale);
  void sum_in_node(Gradient gradient, float scale);
  Update step_of_sum();
  Update share(const Update& update, bool dense);
  Update share_sparse(const Update& update);
  template <class Act>
  auto all_or_dead(const Act& act);
  void check_sound() const;

  void write(StateWriter& state) const override;
  struct Saved;
  Saved read(std::span<const std::byte> state) const;
  template <class Load>
  void restore(const Load& load);

  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  Index n_ = 0;
  ReducerOptions options_;
  bool is_dense_ = false;  // the preset is
  std::string description_;
  std::uint64_t fingerprint_ = 0;
  std::unique_ptr<DensityPlan> density_;  // its adaptive part is the leaders'
  std::unique_ptr<UpdateCheck> check_;    // by options_.check_every
  std::unique_ptr<Nodes> nodes_;
  std::unique_ptr<Reducer> reducer_;  // on leaders
  std::vector<std::size_t> cuts_;     // of the node's sum
  bool spoilt_ = false;               // a step failed half-way
  Uninitialised<float> sum_;          // then the dense update
  Bytes message_;
  SparseVector update_, node_sent_;  // on ranks that do not lead
  CooView sent_;
  StepTimes times_;
  Workspace work_, node_work_;
};

}  // namespace oktopk
