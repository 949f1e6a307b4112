// SPDX-License-Identifier: Apache-2.0
// One training step's synchronisation of one flat gradient: accumulate, select, exchange, settle.
// A Reducer belongs to one rank; all ranks make the same calls. Memory: n floats of residual, n/P of owner memory where
// the residual rule has one, O(k) of buffers; a dense step needs 2n floats more, in bf16 3n floats and n halves.
#pragma once

#include <cstdint>
#include <functional>
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
class GpuExchange;
class GpuSteps;
class ReducerState;
struct Note;

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
  friend bool operator==(const DensityStage&, const DensityStage&) = default;
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
  friend bool operator==(const AdaptiveDensityOptions&, const AdaptiveDensityOptions&) = default;
};

// An option that the preset would ignore is refused: the UsageError names the option, its value and the rule.
struct ReducerOptions {
  std::string preset = "auto";         // a name of presets(); auto: the tuner chooses preset, codec and skips
  std::size_t k = 0;                   // entries per step; 0: by density
  std::optional<double> density = {};  // in (0, 1]: k = density * n, at least 1; absent: 0.01, or k
  std::string selector = {};           // a name; empty: the preset's own
  AllreduceOptions allreduce = {};     // codec, skips, residual rule, oktopk's intervals
  CpuOptions cpu = {};                 // threads that share a pass over n
  std::shared_ptr<const Device> device = nullptr;  // makes all passes over n; null: a CPU device by `cpu`
  // Preset slots on a CUDA device: moves the messages of sparse steps from GPU to GPU (make_nccl_exchange() makes one),
  // for the same ranks. Null: the communicator moves them. All ranks have one, or none has.
  std::shared_ptr<GpuExchange> exchange = nullptr;
  DensitySchedule warmup = {};           // stages before the steps at k
  AdaptiveDensityOptions adaptive = {};  // k changes after the warm-up
  float decay = 1;                       // error feedback: multiplies the unsent values before each sparse step
  NanPolicy nan_policy = NanPolicy::error;
  // Every so many steps the ranks compare hashes of their updates: a Divergence, which names the ranks that differ, in
  // the next step(); 0: never. The hash also covers `checked`, bytes of the caller that are equal on all ranks between
  // two steps, such as the weights.
  std::uint64_t check_every = 0;
  std::function<std::span<const std::byte>()> checked = {};
  ChoiceOptions choice = {};  // auto: its candidates; leave `allreduce` and `groups` as they are
  // auto: the prices of network and processor, equal on all ranks; absent: measured before the first step.
  std::optional<Profile> profile = std::nullopt;
  // Events of each step and its phases go here (docs/observability.md). It changes nothing else and may differ from
  // rank to rank. Rank -1: the communicator's.
  TraceRow trace = {};
  bool trace_messages = true;  // with a trace: also every start and wait of the communicator
};

// The recipe for a run of so many steps (docs/learning.md): circulant, 2.5% of the values in 4 bits; in the first tenth
// of the steps 90% of them, in 4 bits too. The one home of these numbers, for Python as well.
ReducerOptions recipe(std::uint64_t total_steps);

// A dense step that the caller made.
struct ExternalStep {
  double seconds = 0;
  std::uint64_t bytes = 0;  // that this rank sent
  bool skipped = false;     // left out on all ranks: the sum was not finite
  bool is_flush = false;    // no training step
};

class Reducer final : public Synchroniser {
 public:
  // REQUIRES: comm outlives the Reducer. Local: nothing is sent yet. UsageError unless n <= 2^32 - 1; n = 0 is legal.
  explicit Reducer(Communicator& comm, std::uint64_t n, const ReducerOptions& options = {});
  ~Reducer() override;

  // Collective. Adds scale * gradient to the residual, synchronises, and returns the mean over the ranks. An empty
  // gradient adds nothing. After a UsageError nothing has changed, with one exception: an accumulator or a sum that
  // overflows, or with NanPolicy::local a gradient that is not finite, is found in the middle of the step, and the
  // residual is lost. comm is then dead, unless the error is a SumOverflow, which all ranks throw.
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // A step in two halves. propose() makes the whole exchange; then commit() makes it final, or roll_back() takes it
  // back, also after propose() threw: owner memory, thresholds, cuts and counters are what they were. The accumulator
  // (residual + gradient, with the decay) stays, and a dense step leaves the owner memory in it. The next propose() is
  // the retry: give it the same gradient, which is added only if the failed attempt had not come so far. All ranks must
  // commit, or all roll back: ElasticReducer sees to it. COST beyond step(): O(k). In between no other call that
  // changes or saves the state: UsageError. With options.exchange (steps on the GPU) propose() is a UsageError.
  Update propose(Gradient gradient, float scale = 1.0F) override;
  Update propose_flush() override;
  void commit() override;
  void roll_back() override;
  bool is_open() const override { return open_ != Open::no; }  // propose() was called, and neither of the other two

  // This Reducer on another communicator, after ranks have come or gone: with its unsent values and its place in the
  // schedules; thresholds, cuts and preset auto's times start anew. This one is empty afterwards. Local.
  std::unique_ptr<Reducer> moved_to(Communicator& comm);

  // Moves unsent values between Reducers, when the layout of the gradient changes: every value that take_unsent()
  // writes is given once, at its new index, on the rank that took it. Local, but all ranks must do both together.
  // UsageError, with nothing changed, when the size is not n, or a given value is not finite or makes the residual
  // overflow. take_unsent() writes residual + owner memory; both are zero afterwards, thresholds and cuts stay.
  void take_unsent(std::span<float> out);
  void give_unsent(std::span<const float> values);
  // Drops all unsent values. Local, but all ranks should do it together.
  void forget();

  CooView sent() const override;
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;
  StepTimes times() const override;
  StepMetrics metrics() const;  // of the last step; O(k)

  void load(std::span<const std::byte> state) override;
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;

  Communicator& comm() const override { return comm_; }
  Index n() const override { return n_; }
  std::size_t k() const { return k_; }  // after the warm-up; the first one where the density is adaptive
  std::uint64_t steps() const;          // made so far; skipped steps do not count

  // Dense steps that the caller makes, with options.choice.external_dense: the allreduce of a framework works on its
  // tensors where they are. The calls: prepare(), take_unsent(), the sum by any means, end_external().
  // Collective: everything that comes before a step, once; step() calls it where the caller did not. True: the next
  // step is dense and in floats, and the caller may make it instead of step(). The answer is equal on all ranks.
  // `measured`: the price of this rank's external dense step, for preset auto, which needs it before the first step.
  // `step_values`: of a step of which this Reducer has a part; they bound what auto sends to measure. 0: it has all.
  bool prepare(std::optional<ExternalPrice> measured = {}, std::uint64_t step_values = 0);
  // Collective: the same before a flush().
  void prepare_flush();
  // Local: the step was made, or left out by all ranks; in that case the taken values have been given back.
  Update end_external(const ExternalStep& made);
  // Local: the step failed half-way, on this rank at least. The communicator is dead.
  void fail_external();

 private:
  friend class BucketedReducer;  // brings notes of its own and loads the states of all buckets together
  friend class NodeReducer;      // gives its leaders a Role
  friend class ElasticReducer;   // gives a Role, and ends a step without a retry
  // The parts of a Reducer (reducer_state.h), for the Python layer, tools and tests. Valid until the next load().
  friend ReducerState& state_of(Reducer& reducer) { return *reducer.state_; }
  friend const ReducerState& state_of(const Reducer& reducer) { return *reducer.state_; }

  // As a part of another synchroniser: options may be ignored.
  struct Role {
    int divisor = 0;            // makes the mean of the sum; 0: the number of ranks
    std::string settings = {};  // of the other one, which must be equal on all ranks, too
  };
  Reducer(Communicator& comm, Index n, const ReducerOptions& options, Role role);
  Update step(Gradient gradient, float scale, const Note& note);
  void agree(std::string_view call);
  void write(StateWriter& state) const override;
  void restore(const std::function<std::unique_ptr<ReducerState>()>& make);

  // A tentative step: none; being made, or failed; waiting for commit() or roll_back(); the same, but left out.
  enum class Open { no, half, whole, skipped };

  template <class Act>
  void guard(const Act& act);
  bool begin_step(Gradient gradient, float scale, const Note& note);
  void synchronise(Gradient gradient, float scale);
  bool is_dense_step() const;
  void settle(bool is_dense);
  void mark();
  template <class Exchange>
  Update complete(Span& span, const Exchange& exchange);
  void require_closed(std::string_view what) const;
  void sparse_step(Gradient gradient, float scale);
  void select_and_exchange(Gradient gradient, float scale, std::size_t k);
  void dense_step(Gradient gradient, float scale, Allreduce& exchange);
  void compare_shares();
  void review();
  void count_step();
  bool next_is_external() const;
  Update last_update() const;
  Update finish(const Update& update, Span& span);

  Index n_;
  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  ReducerOptions options_;
  Role role_;
  std::size_t k_;
  std::string description_;              // of all options
  std::string settings_;                 // must be equal on all ranks
  std::unique_ptr<ReducerState> state_;  // all that a step changes, and its results
  std::unique_ptr<Allreduce> dense_;     // of floats, for warm-up and flush
  std::unique_ptr<GpuSteps> gpu_steps_;  // with options.exchange
  Uninitialised<float> mean_;            // of the entries, after a sparse step
  Uninitialised<float> dense_mean_;      // after a dense step
  Open open_ = Open::no;
  bool is_flush_ = false;  // the open step is
  bool is_added_ = false;  // the gradient of the next step is in the residual already, after roll_back()
  Workspace work_;
};

}  // namespace oktopk
