// SPDX-License-Identifier: Apache-2.0
// Synchronises a model of many tensors while the backward pass still runs. The flat gradient [0, n)
// is the tensors one after the other; buckets are runs of them, from the last backwards (fusion.h).
// Each bucket has a Reducer of its own (k, residual, thresholds), and one thread per rank exchanges
// the buckets in this order, each as soon as its tensors are ready.
//
// A step is all or nothing, although buckets are exchanged before the last tensor is known: when a
// bucket is refused (NanPolicy error) or skipped, those after it are not exchanged, and those
// before it go back to a copy of their state that was taken as they began. The copy makes this
// exact: gradients that explode are just when a residual must not be saved by adding and
// subtracting them. It costs n floats of memory and one pass over them; a single bucket needs none.
// With NanPolicy local the ranks do not compare notes: a refusal after the first bucket leaves the
// communicator dead.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "oktopk/reduce/fusion.h"
#include "oktopk/reduce/ordered_worker.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

class BucketedReducer final : public Synchroniser {
 public:
  // tensors: their sizes in flat order. options.k is the whole model's and divided over the buckets
  // (share_of_k); options.density is each bucket's. REQUIRES: comm outlives the object. Local: the
  // first step compares tensors and buckets over the ranks, UsageError on all when they differ.
  // UsageError where comm does not allow another thread (Communicator::require_any_thread()).
  BucketedReducer(Communicator& comm, std::vector<Index> tensors, const ReducerOptions& options,
                  const FusionOptions& fusion = {});
  // With a step in flight: ends the exchange that is under way, at its timeout at the latest, and
  // leaves the communicator dead unless all buckets were exchanged.
  ~BucketedReducer() override;
  BucketedReducer(const BucketedReducer&) = delete;
  BucketedReducer& operator=(const BucketedReducer&) = delete;

  // One step in pieces: begin(), ready(t) once for every tensor, wait(). Collective; the order of
  // the tensors may differ between ranks. begin() takes the memory of all n values, of which the
  // values of t must be final when ready(t) is called and stay until wait() (empty: no gradient,
  // all tensors count as zero). ready() may be called from any thread. Between begin() and wait()
  // the communicator is the exchanging thread's.
  void begin(Gradient gradient, float scale = 1.0F);
  void ready(std::size_t tensor);
  // UsageError, and the step goes on, while tensors are missing. Otherwise ends the step: gives its
  // update, or throws what went wrong. After a UsageError, or an update with `skipped`, no bucket
  // has changed on any rank (an accumulator that overflows is the exception, as in Reducer). After
  // a CommError all further steps fail at once.
  Update wait();

  // begin(), ready() for all, wait().
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // Not while a step is in flight.
  CooView sent() const override;
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;
  StepTimes times() const override;  // sums over the buckets
  // Sums over the buckets; the first step's comparison of tensors counts as well. Thresholds are
  // each bucket's own (reducer(b).metrics()), here 0; preset is empty where auto chose several.
  StepMetrics metrics() const;
  void write(StateWriter& state) const override;
  void load(std::span<const std::byte> state) override;
  // REQUIRES: the same tensors and buckets.
  using Synchroniser::load_all;
  void load_all(std::size_t count, const ReadState& read) override;

  Communicator& comm() const override { return comm_; }
  Index n() const override { return n_; }
  std::span<const Index> tensors() const { return tensors_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const Reducer& reducer(std::size_t bucket) const { return *reducers_[bucket]; }
  // Buckets of the step in flight that are exchanged; from any thread.
  std::size_t exchanged() const { return worker_.done(); }

 private:
  using Exchange = std::function<Update(std::size_t bucket)>;

  void launch(Exchange exchange);
  bool run(std::size_t bucket);
  void agree();
  void share_profile(std::size_t bucket);
  void undo();
  Update join();
  Update finish(const Update& update);
  void check_idle(std::string_view what) const;
  void check_all_ready() const;
  bool can_undo() const;
  std::string description() const;
  std::vector<std::span<const std::byte>> read(std::span<const std::byte> state) const;
  bool is_own(std::size_t count, std::span<const std::byte> state) const;
  template <class Load>
  void load_buckets(const Load& load);

  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  std::vector<Index> tensors_;
  NanPolicy nan_policy_;
  TraceRow trace_;  // the caller's; the exchanging thread has the next one
  std::vector<Bucket> buckets_;
  Index n_ = 0;
  std::vector<std::size_t> bucket_of_;  // by tensor
  std::vector<std::unique_ptr<Reducer>> reducers_;
  Workspace work_;

  // The step in flight; the exchanging thread's until it is over.
  Exchange exchange_;
  bool agreed_ = false;
  std::vector<Update> updates_;               // by bucket
  std::vector<Reducer::Snapshot> snapshots_;  // by bucket, the last one's unused

  mutable std::mutex mutex_;  // guards the next three
  bool in_flight_ = false;
  std::vector<char> is_ready_;        // by tensor
  std::vector<std::size_t> awaited_;  // tensors, by bucket

  // Of the last step, in flat indices.
  SparseVector mean_;
  std::vector<float> dense_mean_;
  SparseVector sent_;
  StepMetrics last_;     // counts
  MessageCount before_;  // the step
  std::string broken_;   // the error after which nothing works any more

  OrderedWorker worker_;  // last: its thread ends before anything else does
};

}  // namespace oktopk
