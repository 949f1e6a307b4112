// SPDX-License-Identifier: Apache-2.0
// A Reducer over ranks that fail and join (comm/elastic_world.h). A step is proposed, all members agree, all commit.
// When a member fails, the others regroup: a step that some member has committed is committed by all, any other is
// rolled back, and the same accumulators are sent again by the members that are left, with their number as the divisor.
// A member that joins gets the caller's shared state (weights, optimiser) and the place in the schedules from a member
// that has them; its residual is zero, and it takes part in the next step.
//
// Mass (docs/reliability.md): a lost member takes its residual and its owner memory with it, and nothing else. The
// survivors' owner memory moves into their residuals.
// COST per step beyond a Reducer's: O(k) to be able to roll back, and ceil(log2 P) messages of 16 bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "oktopk/comm/elastic_world.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

struct Prediction;
struct Problem;

// One change of the members, as this member saw it.
struct MembershipChange {
  std::uint64_t epoch = 0;
  std::vector<MemberId> lost;    // their residuals and owner memory are lost
  std::vector<MemberId> joined;  // they begin with nothing unsent
  std::uint64_t step = 0;        // steps that were committed before it
  int P = 0;                     // members now
};

// The caller's part. Shared state is bitwise equal on all members after a step was applied: weights, optimiser.
struct ElasticHooks {
  std::function<Bytes()> save_shared = {};                           // asked of one old member when somebody joins
  std::function<void(std::span<const std::byte>)> load_shared = {};  // called on each member that joins
  std::function<void(const MembershipChange&)> on_change = {};       // called on every member, inside step()
};

class ElasticReducer final : public Synchroniser {
 public:
  // REQUIRES: world outlives the object. Local for the members of the first epoch; a member that joins later waits here
  // for the others' next step and calls load_shared. UsageError for options that need the same ranks all the time:
  // `exchange`, and preset auto without `profile`.
  ElasticReducer(ElasticWorld& world, std::uint64_t n, const ReducerOptions& options = {}, ElasticHooks hooks = {});
  ~ElasticReducer() override;

  // Collective. The update is committed on all members when it is returned. Failures of others are repaired inside.
  // CommError: this member is no longer part of the world. UsageError: as Reducer::step(); where it
  // follows a failure in the same step, the gradient may have become a part of what is unsent. Before the next step the
  // caller applies the update, because a member that joins then gets his shared state.
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  std::uint64_t committed() const { return committed_; }  // steps, with those that were skipped
  const Reducer& reducer() const { return *reducer_; }

  // The cost of a step without trouble.
  Prediction predict(const Problem& problem) const;

  CooView sent() const override { return reducer_->sent(); }
  void subtract_unsent(std::span<float> x) const override { reducer_->subtract_unsent(x); }
  double unsent_norm() const override { return reducer_->unsent_norm(); }
  StepTimes times() const override { return reducer_->times(); }
  void load(std::span<const std::byte> state) override;
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;
  Communicator& comm() const override { return world_.comm(); }
  bool begins_with_all() const override { return !has_joined_; }
  Index n() const override { return reducer_->n(); }

 private:
  friend Reducer& reducer_of(ElasticReducer& elastic) { return *elastic.reducer_; }

  void write(StateWriter& state) const override;
  using Propose = std::function<Update(Reducer&)>;
  Update make(const Propose& propose);
  Update try_once(const Propose& propose);
  bool recover();
  void regroup();
  void settle_in();
  int find_source();
  void share_state(int source);
  void share_bytes(int source, Bytes& bytes);

  ElasticWorld& world_;
  ElasticHooks hooks_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<MemberId> ids_;  // by rank, of reducer_
  std::uint64_t committed_ = 0;
  bool has_state_;            // false: it joined, and has not got the shared state yet
  bool has_joined_;           // after the first epoch
  bool is_stale_;             // the members are no longer those of reducer_
  bool has_voted_ = false;    // for the step that is open
  bool has_joiners_ = false;  // all members know: they regroup before the next step
  Update open_update_;        // of that step
  Workspace work_;
};

}  // namespace oktopk
