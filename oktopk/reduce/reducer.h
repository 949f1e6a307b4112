// SPDX-License-Identifier: Apache-2.0
// One training step's synchronisation of one flat gradient: accumulate, select, exchange, settle.
// A Reducer belongs to one rank; all ranks make the same calls. Memory: n floats of residual, n/P of owner memory where
// the residual rule has one, O(k) of buffers; a dense step needs 2n floats more, in bf16 3n floats and n halves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/device/device.h"
#include "oktopk/reduce/synchroniser.h"
#include "oktopk/trace/trace.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

class Allreduce;
class DensityPlan;
class ReducerState;
class StateMerge;
class StepLog;
class Tuner;
class Unsent;
struct Note;
struct Outcome;
struct OwnerMemory;
struct Prediction;
struct Problem;

// The reaction to a gradient that holds NaN or Inf on some rank, or that has the wrong size.
enum class NanPolicy {
  error,  // the ranks compare notes before each step (ceil(log2 P) messages of a few bytes): UsageError on every
          // rank, nothing changed
  skip,   // the same, but a gradient that is not finite makes all ranks leave the step out
  local,  // no messages and no look at the gradient before it is added: UsageError on that rank, whose residual is
          // lost and whose communicator is dead; its peers notice. A wrong size changes nothing; a rank alone looks
          // first.
};
std::string_view to_string(NanPolicy policy);
NanPolicy find_nan_policy(std::string_view name);  // UsageError lists the names

// A warm-up: stages that come before the steps at k. A stage of density 1 is synchronised densely. Its use:
// docs/learning.md.
struct DensityStage {
  std::uint64_t steps = 0;
  double density = 1;
};
using DensitySchedule = std::vector<DensityStage>;

// The first `steps` steps dense.
DensitySchedule dense_warmup(std::uint64_t steps);
// Deep Gradient Compression's warm-up (Lin et al., ICLR'18, arXiv 1712.01887): density 25%, then a quarter of it from
// stage to stage until `density` is reached, in `steps` steps altogether.
DensitySchedule dgc_warmup(std::uint64_t steps, double density);

// After the warm-up k follows the share of the gradient that is sent (docs/adaptive_density.md).
struct AdaptiveDensityOptions {
  double target_share = 0;  // of the accumulators' squared norm, in (0, 1); 0: off, the density is fixed
  double least = 0;         // least density; 0: a tenth of the first one, at most the budget
  double most = 0;          // largest density; 0: ten times the first one, at most 1
  double budget = 0;        // bound of the mean density over all steps so far; 0: none
  int interval = 32;        // sparse steps between two looks at the share
};

// Codec, skips, profile and choice are refused, with a UsageError that names the option, where the preset would ignore
// them. Options of preset oktopk (tau and the like) are taken with every preset.
struct ReducerOptions {
  std::string preset = "auto";                     // a name of presets(); auto: the tuner chooses preset, codec, skips
  std::size_t k = 0;                               // entries per step; 0: by density
  double density = 0.01;                           // k = density * n, at least 1
  std::string selector = {};                       // a name; empty: the preset's own
  AllreduceOptions allreduce = {};                 // codec, skips, residual rule, intervals
  CpuOptions cpu = {};                             // threads that share a pass over n
  std::shared_ptr<const Device> device = nullptr;  // makes all passes over n; null: a CPU device by `cpu`
  DensitySchedule warmup = {};                     // stages before the steps at k
  AdaptiveDensityOptions adaptive = {};            // k changes after the warm-up; not with preset dense
  float decay = 1;  // error feedback: what is unsent is multiplied by this before each sparse step
  NanPolicy nan_policy = NanPolicy::error;
  ChoiceOptions choice = {};  // auto: what it may choose; its `allreduce` is the one above
  // auto: the prices of network and processor, equal on all ranks; absent: measured before the first step.
  std::optional<Profile> profile = std::nullopt;
  // The sum over the ranks is divided by this to give the mean; 0: by the number of ranks. For ranks that bring the
  // gradients of others too (node_reducer.h).
  int divisor = 0;
  // Events of each step and its phases go here (docs/observability.md). It changes nothing else and may differ from
  // rank to rank. Rank -1: the communicator's.
  TraceRow trace = {};
  bool trace_messages = true;  // with a trace: also every start and wait of the communicator
};

// k of the steps after the warm-up. UsageError unless it is in 1..n.
std::size_t entries_per_step(Index n, const ReducerOptions& options);

// All options that must be equal on all ranks and in a state that is loaded, in words. UsageError that names the option
// and the rule when one is unfit or would be ignored.
std::string describe(const ReducerOptions& options, Index n);

// A dense step that the caller made himself.
struct ExternalStep {
  double seconds = 0;
  std::uint64_t bytes = 0;  // that this rank sent
  bool skipped = false;     // left out on all ranks: the sum was not finite
  bool is_flush = false;    // no training step
};

class Reducer final : public Synchroniser {
 public:
  // REQUIRES: comm outlives the Reducer. Local: nothing is sent yet. UsageError unless n <= 2^32 - 1.
  explicit Reducer(Communicator& comm, std::uint64_t n, const ReducerOptions& options = {});
  ~Reducer() override;

  // Collective. Adds scale * gradient to the residual, synchronises, and returns the mean over the ranks. An empty
  // gradient adds nothing. After a UsageError nothing has changed, with one exception: an accumulator or a sum that
  // overflows, or with NanPolicy::local a gradient that is not finite, is found in the middle of the step, and the
  // residual is lost. comm is then dead, unless the error is a SumOverflow, which all ranks throw.
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // Drops everything that was not applied yet, here and in owner memory; thresholds and cuts stay. Local, but all
  // ranks should do it together.
  void forget();

  CooView sent() const override { return selection_; }
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;
  StepTimes times() const override;
  StepMetrics metrics() const;  // of the last step; O(k)

  void write(StateWriter& state) const override;
  void load(std::span<const std::byte> state) override;
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;

  Communicator& comm() const override { return comm_; }
  Index n() const override { return n_; }
  std::size_t k() const { return k_; }  // after the warm-up; the first one where the density is adaptive
  std::uint64_t steps() const;          // made so far; skipped steps do not count

  // Preset auto: decides by this profile instead of measuring one, unless the options have one. Only before one was
  // measured; local, but all ranks must do it together.
  void use(const Profile& profile);

  // Dense steps that the caller makes himself, with options.choice.external_dense: a framework's own allreduce works
  // on its tensors where they live. prepare(), unsent().take() where unsent().may_exist(), the sum by any means,
  // end_external().
  // Collective: all that comes before a step, once; step() calls it where the caller did not. True: the next step is
  // dense and in floats, and the caller may make it instead of step(). The answer is equal on all ranks. `measured`:
  // the price of this rank's external dense step, wanted where is_calibration_due().
  bool prepare(std::optional<ExternalPrice> measured = {});
  bool is_calibration_due() const;
  // Collective: the same before a flush().
  void prepare_flush();
  // Local: the step was made, or left out by all ranks; in that case the mass that was taken has been given back.
  Update end_external(const ExternalStep& made);
  // Local: it failed half-way, on this rank at least. The communicator is dead.
  void fail_external();

  // All that a step changes (reducer_state.h). go_back() undoes the steps since the copy, bitwise, except that a
  // profile measured since (preset auto) stays. Local, but all ranks must do it together.
  struct Snapshot;
  void copy_to(Snapshot& snapshot) const;
  void go_back(const Snapshot& snapshot);

  // The parts of a Reducer, for studies and for layers that move mass between Reducers (headers that are not
  // installed). References are valid until the next load() or step.
  Unsent& unsent();  // unsent.h: take, give, norm
  const Unsent& unsent() const;
  DensityPlan& density();  // density.h: the place in the schedules
  const DensityPlan& density() const;
  const Tuner* tuner() const;          // tune/tuner.h: of preset auto; nullptr otherwise
  const Allreduce& allreduce() const;  // allreduce/allreduce.h
  const Outcome& outcome() const;      // of the last step: the sum over the ranks, not the mean
  std::span<const float> residual() const;
  OwnerMemory memory() const;
  // The cost of a step at k, with what this class adds to the allreduce's.
  Prediction predict(const Problem& problem) const;

 private:
  friend class BucketedReducer;  // brings notes of its own and loads the states of all buckets together
  Update step(Gradient gradient, float scale, Note note);
  bool is_own(std::size_t count, std::span<const std::byte> state) const;
  StateMerge merge(std::size_t count) const;
  void load(StateMerge&& merge);
  template <class Make>
  void restore(const Make& make);

  Note inspect(Gradient gradient, float scale) const;
  template <class Act>
  void guard(const Act& act);
  void sparse_step(Gradient gradient, float scale);
  void dense_step(Gradient gradient, float scale, Allreduce& exchange);
  void compare_shares();
  void adopt_choice();
  void clear_results();
  void review();
  void observe();
  bool next_is_external() const;
  Update finish(const Update& update, Span& span);

  Index n_;
  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  ReducerOptions options_;
  std::size_t k_;
  std::string description_;              // of all options
  std::string settings_;                 // must be equal on all ranks
  std::unique_ptr<ReducerState> state_;  // all that a step changes
  std::unique_ptr<Allreduce> dense_;     // of floats, for warm-up and flush
  std::optional<Profile> measured_;      // by this object, once
  bool is_prepared_ = false;             // for the next step: its first messages are over
  SparseVector selection_;               // of the last step, as the following members
  std::unique_ptr<Outcome> outcome_;
  Uninitialised<float> mean_;        // of outcome_->update, after a sparse step
  Uninitialised<float> dense_mean_;  // after a dense step
  std::unique_ptr<StepLog> log_;
  Workspace work_;
};

}  // namespace oktopk
