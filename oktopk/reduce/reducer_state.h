// SPDX-License-Identifier: Apache-2.0
// Everything that a step of a Reducer changes: the place in the schedules, the exchange in force, the unsent mass. It
// can be written as a state, read from one, merged from the states of other ranks, and copied to take steps back.
// A state is read in full into a fresh object and the ranks compare notes before it replaces anything: a state that one
// rank cannot read changes nothing anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/state.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/unsent.h"
#include "oktopk/select/selector.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {

// Equal for all steps of a Reducer.
struct ReducerSetting {
  Index n;
  int rank;
  int P;
  const ReducerOptions& options;
  const std::string& description;  // of the options

  int divisor() const { return options.divisor > 0 ? options.divisor : P; }
};

// The head of a state: who saved it.
struct StateOrigin {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint32_t divisor = 1;  // makes the mean of the sum over the ranks
  std::uint64_t n = 0;
  std::string options;
  std::uint64_t steps = 0;
  AdaptiveDensity::Words adaptive{};  // where the options have it; zeros: it has not begun

  void write(StateWriter& state) const;
  static StateOrigin read(StateReader& state);
};

class ReducerState {
 public:
  // New: nothing is unsent. REQUIRES: the setting's references outlive the object; options.device is set.
  explicit ReducerState(const ReducerSetting& setting, const std::optional<Tuner>& tuner);

  // The exchange in force becomes the tuner's choice. Its owner memory is lost: Unsent::fold_memory() comes first.
  void use(const std::optional<Tuner>& tuner);

  void write(StateWriter& state) const;
  // REQUIRES: a new object. UsageError unless the state is of this rank, n, P and options.
  void read(std::span<const std::byte> bytes);
  bool is_own(std::size_t count, std::span<const std::byte> bytes) const;

  void copy_to(Reducer::Snapshot& snapshot) const;
  void go_back(const Reducer::Snapshot& snapshot);

  ReducerSetting setting;
  DensityPlan density;
  std::optional<Tuner> tuner;  // of preset auto
  std::unique_ptr<Selector> selector;
  std::unique_ptr<Allreduce> allreduce;
  const ResidualRule* rule = nullptr;
  Unsent unsent;
  std::uint64_t source = 0;  // a hash of the states that were merged: must be equal on all ranks
};

struct Reducer::Snapshot {
  std::uint64_t steps = 0;
  AdaptiveDensity adaptive;
  std::optional<Tuner> tuner;
  bool is_spoilt = false;
  bool has_unsent = false;
  std::vector<float> residual;  // empty where nothing is unsent
  StateWriter rest;
};

// Joins the states of all ranks of an earlier run, one by one in rank order: rank r continues with what ranks r, r + P,
// r + 2P, ... had.
class StateMerge {
 public:
  StateMerge(const ReducerSetting& setting, std::size_t count, const std::optional<Tuner>& tuner);
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
