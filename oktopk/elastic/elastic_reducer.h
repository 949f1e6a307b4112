// SPDX-License-Identifier: Apache-2.0
// A Reducer over ranks that fail, leave and join (comm/elastic_world.h). A step is proposed, all members agree, all
// commit. When a member fails, the others regroup: a step that some member has committed is committed by all, any other
// is rolled back, and the same accumulators are sent again by the members that are left, with their number as the
// divisor. A member that joins gets the caller's shared state (weights, optimiser) and the place in the schedules from
// a member that has them; its residual is zero, and it takes part in the next step.
//
// Mass (docs/reliability.md): a lost member takes its residual with it, and nothing else: the next rank has a copy of
// its owner memory (mirror.h). A member that leaves takes nothing. The survivors' owner memory moves into their
// residuals.
// COST per step beyond a Reducer's: O(k) to be able to roll back, ceil(log2 P) messages of 16 bytes, and one message of
// O(k) where owners remember.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

struct MemberBase;
class OwnerMirror;
struct Prediction;
struct Problem;
struct Statement;

// All members that are left have joined and wait for the state of the run: it is lost.
struct StateLost : CommError {
  using CommError::CommError;
};

// The unsent values of one member after `step` committed steps. Sums are over the values, norms are Euclidean. A lost
// member's residual is gone, and nobody else has ever seen it: its size is known from the last time when the members
// measured and told each other.
struct UnsentMeasure {
  std::uint64_t step = 0;
  double residual_norm = 0, residual_sum = 0;
  double memory_norm = 0, memory_sum = 0;
  std::uint64_t region_begin = 0, region_end = 0;  // of its owner memory
  friend bool operator==(const UnsentMeasure&, const UnsentMeasure&) = default;
};

// Where the owner memory of a lost member is.
enum class MemoryFate {
  none,       // it had none: no such residual rule, or no committed step
  recovered,  // on `heir`, all of it
  lost,       // the member that had the copy is lost, too, or there are no copies
};

struct MemberLoss {
  MemberId id = 0;
  MemoryFate memory = MemoryFate::none;
  MemberId heir = 0;                               // recovered: who has the memory now
  std::uint64_t region_begin = 0, region_end = 0;  // of the memory: exact if recovered, else as it was measured
  // Its residual is lost, and the gradient of the step that was not committed with it. This is what was known of both
  // residual and memory.
  UnsentMeasure unsent;
  friend bool operator==(const MemberLoss&, const MemberLoss&) = default;
};

// One change of the members. It is reported with the first step that is committed after it, so that all members report
// the same; several changes without a step between them are one.
struct MembershipChange {
  std::uint64_t epoch = 0;
  std::vector<MemberId> lost;      // died, or were given up
  std::vector<MemberId> joined;    // they begin with nothing unsent
  std::uint64_t step = 0;          // steps that were committed before it
  int P = 0;                       // members now
  std::vector<MemberId> left;      // in good order: others have all that they had unsent
  std::vector<MemberLoss> losses;  // one for each of `lost`
  friend bool operator==(const MembershipChange&, const MembershipChange&) = default;
};

// The caller's part. Shared state is bitwise equal on all members after a step was applied: weights, optimiser.
struct ElasticHooks {
  std::function<Bytes()> save_shared = {};                           // asked of one old member when somebody joins
  std::function<void(std::span<const std::byte>)> load_shared = {};  // called on each member that joins
  std::function<void(const MembershipChange&)> on_change = {};       // called on every member, inside step()
};

// Equal on all members.
struct ElasticOptions {
  bool mirror = true;      // copies of owner memory, where the residual rule has one
  int measure_every = 64;  // steps between two measures of what is unsent, each a pass over n; 0: never
};

class ElasticReducer final : public Synchroniser {
 public:
  // REQUIRES: world outlives the object. Local for the members of the first epoch; a member that joins later waits here
  // for the others' next step and calls load_shared. UsageError for options that need the same ranks all the time:
  // `exchange`, and preset auto without `profile`.
  ElasticReducer(ElasticWorld& world, std::uint64_t n, const ReducerOptions& options = {}, ElasticHooks hooks = {},
                 const ElasticOptions& elastic = {});
  ~ElasticReducer() override;

  // Collective. The update is committed on all members when it is returned. Failures of others are repaired inside.
  // CommError: this member is no longer part of the world. UsageError: as Reducer::step(); where it
  // follows a failure in the same step, the gradient may have become a part of what is unsent. Before the next step the
  // caller applies the update, because a member that joins then gets his shared state.
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // The next step or flush is this member's last one. The others learn it with the votes of that step; one of them gets
  // all that this member has unsent, and all know that the step is committed, before the call returns. A refused step
  // is not yet the last one. Local.
  void leave_after_next();
  bool has_left() const { return leaving_ == Leaving::left; }

  // Collective: the caller's own messages between two steps, repaired as a step is. run(comm) may be called several
  // times, over other members; it computes `result`, which is equal on all members. A member that joins between this
  // call and the next step gets the result instead. CommError as step(). UsageError when the sizes differ.
  void collective(std::span<std::byte> result, const std::function<void(Communicator&)>& run) override;

  bool has_joined() const { return has_joined_; }         // after the first epoch
  std::uint64_t committed() const { return committed_; }  // steps, with those that were skipped
  const Reducer& reducer() const { return *reducer_; }
  const OwnerMirror& mirror() const { return *mirror_; }  // of the rank before

  // Numbers of the last attempt at a step, with the epoch. `waited_for` is a rank of this epoch: membership().ids has
  // its id.
  StepMetrics metrics() const;

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
  // A failure is repaired, and ends the comparison.
  void compare(std::string_view who, std::string_view settings) override;
  Index n() const override { return reducer_->n(); }

 private:
  // For tests, since the last committed step. received_of: who has handed over to this member; inherited_of: whose
  // memory it has from its copy; 0: nobody's.
  friend Reducer& reducer_of(ElasticReducer& elastic) { return *elastic.reducer_; }
  friend const std::vector<MemberId>& received_of(const ElasticReducer& elastic) { return elastic.received_; }
  friend MemberId inherited_of(const ElasticReducer& elastic) { return elastic.inherited_; }

  // A call that all members make together: tried until all agree that it is complete, then committed on all.
  struct Action {
    std::function<void()> attempt;
    std::function<void()> commit;
  };
  enum class Leaving { no, announced, parting, left };

  const ReducerState& state() const { return state_of(std::as_const(*reducer_)); }
  const ReducerOptions& options() const;
  void write(StateWriter& state) const override;
  using Propose = std::function<Update(Reducer&)>;
  Update make(const Propose& propose);
  void act(const Action& action);
  void attempt(const Propose& propose);
  void exchange_mirrors();
  void exchange_measures();
  void vote();
  bool is_seen_by_all(const UsageError& error) const;
  void refuse();
  void commit_step();
  void begin_base();
  void measure();
  bool recover(const Action* action);
  void regroup();
  void settle();
  void settle_in();
  Statement statement() const;
  int find_source() const;
  void share_state(int source);
  Bytes write_shared() const;
  void read_shared(std::span<const std::byte> bytes);
  void share_bytes(int source, Bytes& bytes);
  void inherit();
  void say_goodbye();
  void part();
  void hand_over_from(std::size_t leaver);
  void keep_update();
  bool mirrors() const;

  ElasticWorld& world_;
  ElasticHooks hooks_;
  ElasticOptions elastic_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<MemberId> ids_;  // by rank, of reducer_
  std::uint64_t epoch_;        // of reducer_
  MemberId id_;                // of this member
  std::uint64_t committed_ = 0;
  std::uint64_t actions_ = 0;     // committed steps and collectives
  bool has_state_;                // false: it joined, and has not got the shared state yet
  bool has_joined_;               // after the first epoch
  bool is_stale_;                 // the members are no longer those of reducer_
  bool has_voted_ = false;        // for the action that is open
  bool needs_regroup_ = false;    // all members know: before the next action
  bool somebody_leaves_ = false;  // all members know: after this step
  Leaving leaving_ = Leaving::no;
  Update open_update_;  // of the step
  SparseVector kept_sparse_;
  Uninitialised<float> kept_dense_;  // the same, where reducer_ changed before it was returned
  std::unique_ptr<OwnerMirror> mirror_;
  std::unique_ptr<MemberBase> base_;     // at the last committed step
  MemberId inherited_ = 0;               // the copy of this member's memory is in the residual; 0: nobody's
  std::vector<MemberId> received_;       // this member has everything that these had unsent
  std::vector<Statement> statements_;    // of the present epoch
  UnsentMeasure measure_;                // of this member, the last one
  bool has_measured_ = false;            // all members have: they tell each other in the next step
  std::vector<UnsentMeasure> gathered_;  // of the open step
  std::vector<Bytes> results_;           // of collectives since the last step
  std::size_t replayed_ = 0;             // of them
  Workspace work_;
};

}  // namespace oktopk
