// SPDX-License-Identifier: Apache-2.0
// One step of synchronisation, as a caller sees it: one flat gradient goes in, the mean over the ranks comes out.
// Reducer does it in one piece, BucketedReducer tensor by tensor, NodeReducer host by host. Optimisers work with any
// of them. All ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/base/bytes.h"
#include "oktopk/base/gradient.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

class Optimiser;
class StateWriter;

// The mean over the ranks, bitwise equal on all of them. A sparse step gives entries, a dense step all n values. These
// are views of memory that belongs to the object that made the step; they stay valid until its next step.
struct Update {
  CooView sparse;                     // entries; empty after a dense step
  std::span<const float> dense = {};  // all n values after a dense step, otherwise empty
  bool skipped = false;               // a gradient of some rank was not finite, and NanPolicy::skip was chosen

  bool is_dense() const { return !dense.empty(); }
  std::size_t size() const { return is_dense() ? dense.size() : sparse.size(); }

  // visit(index, mean) for every entry, by increasing index.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t j = 0; j < sparse.size(); ++j) visit(sparse.idx[j], sparse.val[j]);
    for (std::size_t i = 0; i < dense.size(); ++i) visit(static_cast<Index>(i), dense[i]);
  }

  void subtract_from(std::span<float> weights) const {
    for_each([&](Index i, float mean) { weights[i] -= mean; });
  }
};

// The update as all n values, for callers who cannot use entries (a framework's gradient buffer). A sparse step
// rewrites only the entries of the last update and of the new one. COST: O(k) writes per sparse step, n per dense one.
class DenseMean {
 public:
  explicit DenseMean(Index n) : values_(n, 0.0F) {}

  // The mean as n values, valid until the next call. A skipped step gives zeros.
  std::span<const float> show(const Update& update);

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  Uninitialised<float> values_;
  Uninitialised<Index> written_;  // where values_ may not be zero; unused after a dense update
  bool all_written_ = false;
};

// Seconds of the last step on this rank.
struct StepTimes {
  double check = 0;     // the look at the gradient, before anything changes
  double select = 0;    // accumulate and select
  double exchange = 0;  // the allreduce with its sums and codecs, and the wait for slower ranks
  double settle = 0;    // residual rule, mean
  double inside = 0;    // NodeReducer: the sum inside the node and sharing its update, with the wait for its ranks

  StepTimes& operator+=(const StepTimes& other);
};

// Numbers of the last step, or flush(), on this rank (docs/observability.md). Before the first step, and after a step
// that threw, all numbers are zero except n, dense_bytes and the times so far.
struct StepMetrics {
  std::uint64_t step = 0;       // training steps made, this one included; skipped steps do not count
  std::uint64_t n = 0;          // values of the gradient
  std::uint64_t k = 0;          // entries aimed at: those of the warm-up's stage, or k; n in a dense step
  std::uint64_t selected = 0;   // entries that this rank sent: about k, at most 2k; 0 if dense
  std::uint64_t gathered = 0;   // entries of the update, equal on all ranks; n if dense
  double local_threshold = 0;   // smallest magnitude that this rank sent; 0 if dense or none
  double global_threshold = 0;  // smallest |sum over the ranks| of the update; 0 if dense or none
  // Share of the accumulators' squared norm that was sent, mean over the ranks. 0 unless the density is adaptive and
  // the ranks compared their shares in this step.
  double share = 0;
  std::uint64_t messages = 0;    // sent by this rank in this step; without those of an external dense step
  std::uint64_t wire_bytes = 0;  // their bytes
  // Preset auto, in its first step: bytes that this rank sent to measure the network. wire_bytes has them not.
  std::uint64_t measured_bytes = 0;
  double dense_bytes = 0;   // that a dense allreduce of floats would send: 2n(P-1)/P * 4
  StepTimes times;          // seconds on this rank
  double idle = 0;          // seconds of them in which this rank waited for messages
  int waited_for = -1;      // the rank whose messages it waited for longest; -1: for none
  double longest_wait = 0;  // seconds of `idle` that were for that rank
  int members = 0;          // ranks of this step
  std::uint64_t epoch = 0;  // ElasticReducer: of its members; 0: the ranks never change
  std::string preset;       // the preset in force, chosen by auto or by name
  std::string codec;        // its coding of entries, such as "elias_fano+bf16"
  bool refreshed = false;   // thresholds or cuts were evaluated anew, with extra messages
  bool is_dense = false;    // all n values were exchanged: preset dense, warm-up or flush
  bool skipped = false;     // left out: a gradient of some rank was not finite
};

// Returns the bytes of the state that rank `rank` of an earlier run saved; valid until the next call.
using ReadState = std::function<std::span<const std::byte>(std::size_t rank)>;

class Synchroniser {
 public:
  virtual ~Synchroniser() = default;

  virtual Communicator& comm() const = 0;
  virtual Index n() const = 0;

  // Collective: UsageError on all ranks unless their settings are equal (require_equal of comm/collectives.h). Only
  // ranks that begin together can compare: where members come and go, others do nothing here.
  virtual void compare(std::string_view who, std::string_view settings);

  // Collective: the caller's own messages between two steps. run(comm) computes `result`, equal on all ranks. A
  // synchroniser whose ranks change repairs failures and calls run again: it must give the same from the same start.
  virtual void collective(std::span<std::byte> /*result*/, const std::function<void(Communicator&)>& run) {
    run(comm());
  }

  // Collective. Adds scale * gradient to what is unsent and synchronises.
  virtual Update step(Gradient gradient, float scale = 1.0F) = 0;

  // Collective. Applies everything that is unsent, residuals and owner memory, in one dense exchange; afterwards
  // nothing is left. It is no training step: counters and thresholds stay.
  virtual Update flush() = 0;

  // Steps in two halves, which a Reducer makes (reducer.h). UsageError elsewhere.
  virtual Update propose(Gradient gradient, float scale = 1.0F);
  virtual Update propose_flush();
  virtual void commit();
  virtual void roll_back();
  virtual bool is_open() const { return false; }

  // The entries that this rank sent in the last step; empty after a dense step.
  virtual CooView sent() const = 0;
  // x -= this rank's residual.
  virtual void subtract_unsent(std::span<float> x) const = 0;
  // sqrt of the sum of squares of this rank's residual and owner memory.
  virtual double unsent_norm() const = 0;
  virtual StepTimes times() const = 0;

  // This rank's state: everything that later steps depend on. Local. Needs no more memory than the state itself.
  Bytes save() const;
  // Collective: continues from what this rank saved, bitwise as if never stopped. UsageError on every rank, with
  // nothing changed on any, when one rank's state is damaged or belongs to another problem, rank, P or options.
  virtual void load(std::span<const std::byte> state) = 0;
  // Collective: continues from the states that the ranks of an earlier run saved, in rank order, for any number of
  // ranks and any options. The sum that is owed to the weights, (residuals + owner memory) / P, is conserved.
  // Thresholds and cuts start anew, unless each rank finds its own state. The same guarantees hold on errors.
  // read(r) returns the state of rank r < count. It is called several times, in any order; only the result of the
  // last call must stay valid, so no rank needs more than one state at a time.
  virtual void load_all(std::size_t count, const ReadState& read) = 0;
  void load_all(std::span<const Bytes> states) {
    load_all(states.size(), [&](std::size_t r) { return std::span<const std::byte>(states[r]); });
  }

 private:
  friend class Optimiser;  // saves the state inside its own
  virtual void write(StateWriter& state) const = 0;
};

}  // namespace oktopk
