// SPDX-License-Identifier: Apache-2.0
// One training step's synchronisation of one flat gradient: accumulate, select, exchange, settle.
// Belongs to one rank; all ranks make the same calls. Memory: n floats of residual, n/P of owner
// memory where the rule has one, O(k) of buffers; a dense step: 2n more, in bf16 3n and n halves.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/allreduce/residual.h"
#include "oktopk/comm/tracing.h"
#include "oktopk/device/device.h"
#include "oktopk/reduce/adaptive_density.h"
#include "oktopk/reduce/density_schedule.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/step_metrics.h"
#include "oktopk/reduce/synchroniser.h"
#include "oktopk/trace/trace.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {

// What happens when a rank's gradient holds NaN or Inf (or has the wrong size).
enum class NanPolicy {
  error,  // the ranks compare notes before each step (a few bytes, ceil(log2 P) messages): a
          // UsageError on every rank, nothing changed
  skip,   // the same, but a gradient that is not finite makes all ranks leave the step out
  local,  // no messages and no look at the gradient before it is added: a UsageError on that rank,
          // whose residual is lost and whose communicator is dead; its peers notice. (A wrong size
          // changes nothing; and a rank alone looks first.)
};
std::string_view to_string(NanPolicy policy);
NanPolicy find_nan_policy(std::string_view name);

struct ReducerOptions {
  // "auto": the tuner's choice of preset, codec and skips, in place of those of `allreduce`.
  std::string preset = "auto";
  std::size_t k = 0;                                    // entries per step; 0: by density
  double density = 0.01;                                // k = density * n, at least 1
  std::optional<SelectorKind> selector = std::nullopt;  // default: the preset's own
  AllreduceOptions allreduce = {};                      // codec, skips, residual rule, intervals
  CpuOptions cpu = {};                                  // threads that share a pass over n
  DensitySchedule warmup = {};                          // stages before the steps at k
  AdaptiveDensityOptions adaptive = {};                 // k changes after the warm-up; not with preset dense
  float decay = 1;  // error feedback: what is unsent is multiplied by this before each sparse step
  NanPolicy nan_policy = NanPolicy::error;
  ChoiceOptions choice = {};  // auto: what it may choose; its `allreduce` is the one above
  // auto: what the network costs, equal on all ranks; absent: measured before the first step.
  std::optional<Profile> profile = std::nullopt;
  // What the sum over the ranks is divided by to give the mean; 0: their number. For ranks that
  // bring the gradients of others too (node_reducer.h).
  int divisor = 0;
  // Events of each step and its phases go here (docs/observability.md); changes nothing else, and
  // may differ from rank to rank. Rank -1: the communicator's.
  TraceRow trace = {};
  bool trace_messages = true;  // with a trace: also every start and wait of the communicator
};

// k of the steps after the warm-up. UsageError unless it is in 1..n.
std::size_t entries_per_step(Index n, const ReducerOptions& options);

// All options that must be equal on all ranks and in a state that is loaded, in words. UsageError
// that names the option and the rule when one is unfit.
std::string describe(const ReducerOptions& options, Index n);

// Reports a dense step that the caller made.
struct ExternalStep {
  double seconds = 0;
  std::uint64_t bytes = 0;  // that this rank sent
  bool skipped = false;     // left out on all ranks: the sum was not finite
  bool is_flush = false;    // no training step
};

// Around comm, where the options ask for its messages in a trace; null elsewhere.
std::unique_ptr<Communicator> trace_messages(Communicator& comm, const ReducerOptions& options);

class Reducer final : public Synchroniser {
 public:
  // REQUIRES: comm outlives the Reducer. Local: nothing is sent yet.
  Reducer(Communicator& comm, Index n, const ReducerOptions& options);

  // Collective. Adds scale * gradient to the residual, synchronises, and gives the mean over the
  // ranks. An empty gradient adds nothing. After a UsageError nothing has changed, except when an
  // accumulator or a sum overflowed, or with NanPolicy local the gradient was not finite: that is
  // found in the middle of the step, and the residual is lost. comm is then dead, unless it was a
  // SumOverflow, which all ranks throw.
  Update step(Gradient gradient, float scale = 1.0F) override;
  // The same for a caller who found something wrong on this rank himself: `found` goes before what
  // is wrong with the gradient.
  Update step(Gradient gradient, float scale, Note found);
  Update flush() override;

  // Dense steps that the caller makes himself, with options.choice.external_dense
  // (reducer_external.cc): prepare(), take_unsent() where has_unsent(), the sum by whatever means
  // the caller has, end_external().
  // Collective: all that comes before a step, once; step() does it where it was not done. True: the
  // next step is dense and in floats, and the caller may make it himself instead of step(). The
  // answer is equal on all ranks. `measured`: what this rank's external dense costs, wanted where
  // is_calibration_due().
  bool prepare(std::optional<ExternalPrice> measured = {});
  bool is_calibration_due() const;
  // Collective: the same before a flush().
  void prepare_flush();
  // Whether anything may be unsent on any rank. O(1), equal on all ranks.
  bool has_unsent() const { return has_unsent_; }
  // Local: the step was made, or left out by all ranks; then what was taken has been given back.
  Update end_external(const ExternalStep& made);
  // Local: it failed half-way, on this rank at least. The communicator is dead.
  void fail_external();

  // Drops what was not applied yet, here and in owner memory; thresholds and cuts stay. Local, but
  // all ranks should do it together.
  void forget();

  void write(StateWriter& state) const override;
  void load(std::span<const std::byte> state) override;
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;

  // load_all() in pieces, for those who keep several Reducers' states in one: the states in rank
  // order, one by one, into a Merge, which changes nothing; then load(), collective, of the Merges
  // that all ranks have filled. is_own(): whether `state`, of this rank's number among `count`, can
  // be loaded as it is; when all ranks find theirs so, they load() it instead.
  class Merge;
  void load(Merge&& merge);
  bool is_own(std::size_t count, std::span<const std::byte> state) const;

  // All that a step changes. go_back() makes it as if the steps since the copy had not been,
  // bitwise, but for a profile that was measured since (preset auto): it stays. Local, but all
  // ranks must do it together.
  struct Snapshot {
    std::uint64_t steps = 0;
    bool spoilt = false;
    bool has_unsent = false;
    std::optional<Tuner> tuner;
    AdaptiveDensity adaptive;
    std::vector<float> residual;  // empty where nothing is unsent
    StateWriter rest;
  };
  void copy_to(Snapshot& snapshot) const;
  void go_back(const Snapshot& snapshot);

  Communicator& comm() const override { return comm_; }
  Index n() const override { return static_cast<Index>(residual_.size()); }
  // When the warm-up is over. It is the first one, where the density is adaptive: adaptive().k() is
  // the next.
  std::size_t k() const { return k_; }
  std::uint64_t steps() const { return steps_; }  // made so far; skipped ones do not count
  // The cost of a step at k, with what this class adds to the allreduce's.
  Prediction predict(const Problem& problem) const;

  // Of the last step. The outcome holds the sum over the ranks, not the mean.
  const SparseVector& selection() const { return selection_; }
  const Outcome& outcome() const { return outcome_; }
  CooView sent() const override { return selection_; }
  StepTimes times() const override { return times_; }
  // O(k) when asked, nothing when not.
  StepMetrics metrics() const;

  std::span<const float> residual() const { return residual_.values(); }
  OwnerMemory memory() const { return allreduce_->memory(); }
  const Allreduce& allreduce() const { return *allreduce_; }
  const AdaptiveDensity& adaptive() const { return adaptive_; }
  // Of preset auto; nullptr otherwise.
  const Tuner* tuner() const { return tuner_ ? &*tuner_ : nullptr; }
  // auto: decides by this profile instead of measuring one, unless the options have one. Before one
  // was measured; local, but all ranks must do it together.
  void use(const Profile& profile);
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;

  // Moving what is unsent to other Reducers, when the layout of the gradient changes: nothing is
  // lost, every value of `out` is given once, at its new index, on the rank that took it. Local,
  // but all ranks must do both together. UsageError, with nothing changed, when the size is not n,
  // or a value that is given is not finite or makes the residual overflow.
  // out = this rank's residual and, in the region that it owns, its owner memory; both are zero
  // afterwards. Thresholds and cuts stay.
  void take_unsent(std::span<float> out);
  // Adds the values to this rank's residual.
  void give_unsent(std::span<const float> values);

  // The place in the schedules, for Reducers that go on where those of another layout were. All is
  // per value of the gradient, so that Reducers of any n can begin there; equal on all ranks.
  struct Pace {
    std::uint64_t steps = 0;           // made so far: the place in the warm-up
    std::uint64_t adaptive_steps = 0;  // of an adaptive density; 0: it has not begun, or is off
    double density = 0;                // of its next step, before the budget
    double spent = 0;                  // entries per value, over all its steps
  };
  Pace pace() const;
  // Local, but all ranks must do it together, with the same pace. UsageError, with nothing changed,
  // after the first step, or when a number is no part of a pace.
  void begin_at(const Pace& pace);

 private:
  // What a state restores, made in full before anything is replaced.
  struct Parts {
    std::uint64_t steps = 0;
    std::uint64_t source = 0;  // a hash of the states, where they must be equal on all ranks
    AdaptiveDensity adaptive;
    std::vector<float> residual;
    std::optional<Tuner> tuner;
    std::unique_ptr<Selector> selector;
    std::unique_ptr<Allreduce> allreduce;
  };
  Parts make_parts(const std::optional<Tuner>& tuner) const;
  void replace(Parts&& parts);
  Parts read(std::span<const std::byte> state) const;
  template <class Make>
  void restore(const Make& make);

  Note inspect(Gradient gradient, float scale) const;
  template <class Act>
  void guard(const Act& act);
  void synchronise(Gradient gradient, float scale, double density);
  void sparse_step(Gradient gradient, float scale, double density);
  void dense_step(Gradient gradient, float scale, Allreduce& exchange);
  bool adapts(double density) const { return density == 0 && adaptive_.is_on(); }
  void steer_density();
  SentShare sent_share() const;
  void fold_memory();
  void adopt_choice();
  void calibrate_first(std::optional<ExternalPrice> external);
  bool next_is_external() const;
  void review();
  void observe();
  void check_sound() const;
  void begin_metrics();
  void end_metrics(const Update& update);
  Update finish(const Update& update, Span& span);
  Update update() const;
  Tuner make_tuner() const;
  int divisor() const { return options_.divisor > 0 ? options_.divisor : comm_.size(); }

  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  ReducerOptions options_;
  std::size_t k_;
  AdaptiveDensity adaptive_;
  std::unique_ptr<Device> device_;
  std::optional<Tuner> tuner_;       // of preset auto
  std::optional<Profile> measured_;  // by this object, once
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<Allreduce> allreduce_;
  std::unique_ptr<Allreduce> dense_;  // of floats, for warm-up and flush
  const ResidualRule* rule_ = nullptr;
  std::string description_;        // of all options
  std::uint64_t fingerprint_ = 0;  // of the description
  Residual residual_;
  bool spoilt_ = false;       // a step failed half-way
  bool dead_ = false;         // and the communicator is dead
  bool is_prepared_ = false;  // for the next step, whose first messages are over
  bool has_unsent_ = false;   // perhaps, on some rank; the same on all
  std::uint64_t steps_ = 0;
  SparseVector selection_;
  Outcome outcome_;
  Uninitialised<float> mean_;        // of outcome_.update, after a sparse step
  Uninitialised<float> dense_mean_;  // after a dense step
  StepTimes times_;
  StepMetrics last_;     // counts of the last step
  MessageCount before_;  // the step
  Workspace work_;
};

class Reducer::Merge {
 public:
  Merge(const Reducer& reducer, std::size_t count);
  // UsageError, which says of which state, when it is not the next rank's of the same run.
  void add(std::span<const std::byte> state);

 private:
  friend class Reducer;
  void add_next(std::span<const std::byte> state);

  const Reducer* reducer_;
  std::size_t count_;     // of states
  std::size_t next_ = 0;  // rank
  AdaptiveDensity::Words adaptive_{};
  std::string options_;  // of the run
  Parts parts_;
};

}  // namespace oktopk
