// SPDX-License-Identifier: Apache-2.0
// Everything that a step of a Reducer changes: the place in the schedules, the exchange in force, the unsent values,
// and the results of the last step. All but the results can be written as a state, read from one, merged from the
// states of other ranks, and copied to take steps back. A state is read in full into a fresh object, and the ranks
// compare notes before it replaces anything: a state that one rank cannot read changes nothing anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/state.h"
#include "oktopk/gpu/cuda_slots.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/step_log.h"
#include "oktopk/reduce/unsent.h"
#include "oktopk/reduce/update_check.h"
#include "oktopk/select/selector.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {

// The first word of a NodeReducer's state, and of no other.
inline constexpr std::uint64_t kNodeState = 0x6e6f64652d73756d;
// The first word of the text with which a BucketedReducer's state begins.
inline constexpr std::string_view kBucketedState = "tensors";

// UsageError unless `wanted` saved the state: "a Reducer", "a BucketedReducer", "a NodeReducer" or "an optimiser". The
// error names both. REQUIRES: nothing was taken from the state.
void require_saver(StateReader state, std::string_view wanted, std::string_view hint = "");
// UsageError unless rank `rank` of P saved the state.
void require_own(std::uint32_t savers, std::uint32_t saved_rank, int P, int rank);
// The same for state `r` of `count` states that load_all() was given.
void require_place(std::uint32_t savers, std::uint32_t saved_rank, std::size_t count, std::size_t r);
// Calls act(); its UsageErrors then name the state: "state 2 of 4: ...".
void look_into_state(std::size_t r, std::size_t count, const std::function<void()>& act);
// UsageError that names the first difference of two descriptions.
void require_same(std::string_view saved, std::string_view mine, std::string_view hint = "");

// Equal for all steps of a Reducer.
struct ReducerSetting {
  Index n;
  int rank;
  int P;
  const ReducerOptions& options;
  const std::string& description;  // of the options
  int divisor;                     // makes the mean of the sum over the ranks
};

// The head of a state: who saved it.
struct StateOrigin {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint32_t divisor = 1;
  std::uint64_t n = 0;
  std::string options;
  std::uint64_t steps = 0;
  AdaptiveDensity::Words adaptive{};  // where the options have it; zeros: it has not begun

  void write(StateWriter& state) const;
  static StateOrigin read(StateReader& state);
};

// The state before a tentative step, without the exchange in force and its owner memory: it notes its own changes.
struct TentativeMark {
  DensityPlan density;
  StateWriter selector;
  bool is_first;  // step of the exchange
};

// A copy of everything that a step changes, without the results.
struct ReducerSnapshot {
  std::optional<DensityPlan> density;
  std::optional<Tuner> tuner;
  bool is_spoilt = false;
  bool has_unsent = false;
  std::vector<float> residual;  // empty where nothing is unsent
  StateWriter rest;
};

class ReducerState {
 public:
  // New: nothing is unsent. REQUIRES: the setting's references outlive the object; options.device is set.
  explicit ReducerState(const ReducerSetting& setting, const std::optional<Tuner>& tuner);

  // Preset auto: decides by this profile instead of measuring one, unless the options have one. Only before one was
  // measured; local, but all ranks must do it together.
  void use_profile(const Profile& profile);
  // The exchange becomes the tuner's choice. Nothing is lost: an owner takes its memory into its residual.
  void adopt_choice();
  bool is_calibration_due() const;

  // The cost of a step at k: the allreduce's, and that of the ranks' agreement.
  Prediction predict(const Problem& problem) const;

  void write(StateWriter& state) const;
  // REQUIRES: a new object. UsageError unless the state is of this rank, n, P and options.
  void read(std::span<const std::byte> bytes);
  // Whether read() would take it, by its head. UsageError where the head cannot be read.
  bool is_own(std::span<const std::byte> bytes) const;

  // The place in the schedules is that of another run.
  void continue_after(const StateOrigin& origin);

  void copy_to(ReducerSnapshot& snapshot) const;
  // Steps on the GPU (gpu_steps.h), for preset slots. The kernels then have the thresholds; settle_gpu() brings them
  // back to selector and allreduce, which everything else uses.
  CudaSlots& on_gpu();
  std::span<float> open_memory();  // of the owner
  bool has_gpu_steps() const { return gpu_ != nullptr; }
  void end_gpu_step(std::size_t k);
  void note_gpu_messages(std::size_t k);
  std::size_t gpu_words(std::size_t k) const;  // 32-bit words of a message
  std::uint32_t gpu_tag() const;               // of all messages
  void settle_gpu() const;
  void leave_gpu();

  // Undoes the steps since the copy, bitwise, except that a profile that was measured since stays. Local, but all ranks
  // must do it together.
  void go_back(const ReducerSnapshot& snapshot);

  // A tentative step: mark() before it, then take_back(), or keep(). The residual is not part of it. Local.
  void mark();
  void take_back();
  void keep();

  ReducerSetting setting;
  DensityPlan density;
  std::optional<Tuner> tuner;  // of preset auto
  std::unique_ptr<Selector> selector;
  std::unique_ptr<Allreduce> allreduce;
  const ResidualRule* rule = nullptr;
  Unsent unsent;
  std::uint64_t source = 0;  // a hash of the warm-up and of the states that were merged: equal on all ranks

  // The last step.
  bool is_prepared = false;  // for the next step: its first messages are over
  SparseVector selection;
  Outcome outcome;  // the sum over the ranks, not the mean
  StepLog log;
  UpdateCheck check{setting.options};  // nothing is due after load()

 private:
  void use(const std::optional<Tuner>& its_tuner);
  void clear_results();

  std::optional<TentativeMark> mark_;
  std::unique_ptr<CudaSlots> gpu_;
  mutable bool is_gpu_ahead_ = false;  // of selector and allreduce
};

// Joins the states of all ranks of an earlier run, one by one in rank order: rank r continues with what ranks r, r + P,
// r + 2P, ... had.
class StateMerge {
 public:
  // An empty merge, for a Reducer that has this state.
  StateMerge(const ReducerState& state, std::size_t count);
  // UsageError, which names the state, when it is not the next rank's of the same run.
  void add(std::span<const std::byte> state);
  // The result. UsageError when states are missing.
  std::unique_ptr<ReducerState> finish();

 private:
  void add_next(std::span<const std::byte> state);

  std::size_t count_;     // of states
  std::size_t next_ = 0;  // rank
  StateOrigin first_;     // of the first state
  std::unique_ptr<ReducerState> state_;
};

}  // namespace oktopk
