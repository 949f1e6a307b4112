// SPDX-License-Identifier: Apache-2.0
// Synchronises a model of many tensors while the backward pass still runs (docs/many_tensors.md). The flat gradient
// [0, n) is the tensors one after the other; buckets are runs of them, counted from the last tensor backwards. Each
// bucket has its own Reducer (k, residual, thresholds). One thread per rank exchanges the buckets in this order, each
// as soon as its tensors are ready.
//
// A step is all or nothing, although buckets are exchanged before the last tensor is known: when a bucket is refused
// (NanPolicy::error) or skipped, the later buckets are not exchanged, and the earlier ones return to a copy of their
// state. The copy costs n floats of memory and one pass over them; a single bucket needs none. With NanPolicy::local
// the ranks do not compare notes: a refusal after the first bucket leaves the communicator dead.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

class OrderedWorker;
struct ReducerSnapshot;
struct StepLog;

// Which tensors are exchanged together. More buckets overlap more of the backward pass and pay more messages.
enum class FusionPolicy {
  whole,    // one bucket: k is the model's, nothing overlaps; the choice of Ok-Topk (PPoPP'22)
  tensor,   // one bucket per tensor
  size,     // fuse until a bucket holds at least so many values
  search,   // the best size by binary search on the iteration time, after TopKA2A (Peng, Li, Shi, Li, ICPP'24), with
            // the time from the cost model in place of a measured one
  optimal,  // ours: the best of all plans under the same model, by dynamic programming
};
std::string_view to_string(FusionPolicy policy);
FusionPolicy find_fusion_policy(std::string_view name);  // UsageError lists the names

struct FusionOptions {
  FusionPolicy policy = FusionPolicy::whole;
  std::size_t values = std::size_t{1} << 20;  // size: of a full bucket
  // search and optimal: the prices of a message, a byte and a merged entry, and the seconds of the backward pass,
  // either per tensor in flat order, or altogether, divided by size.
  Machine machine = {};
  double backward_seconds = 0;
  std::vector<double> tensor_seconds = {};
};

// Tensors first <= t < end; their values in the flat gradient.
struct Bucket {
  std::size_t first = 0;
  std::size_t end = 0;
  Range range;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

class BucketedReducer final : public Synchroniser {
 public:
  // tensors: their sizes in flat order, 2^32 - 1 values at most. options.k is the whole model's and divided over the
  // buckets by size; options.density is each bucket's. REQUIRES: comm outlives the object. Local: the first step
  // compares tensors and buckets over the ranks, UsageError on all when they differ. UsageError where comm does not
  // allow another thread (Communicator::require_any_thread()).
  explicit BucketedReducer(Communicator& comm, const std::vector<std::uint64_t>& tensors,
                           const ReducerOptions& options = {}, const FusionOptions& fusion = {});
  // The same for sizes of any integer type.
  template <std::ranges::input_range AnySizes>
  explicit BucketedReducer(Communicator& comm, const AnySizes& tensors, const ReducerOptions& options = {},
                           const FusionOptions& fusion = {})
      : BucketedReducer(comm, std::vector<std::uint64_t>(std::ranges::begin(tensors), std::ranges::end(tensors)),
                        options, fusion) {}
  // With a step in flight: ends the exchange that is under way, at its timeout at the latest, and leaves the
  // communicator dead unless all buckets were exchanged.
  ~BucketedReducer() override;

  // One step in pieces: begin(), ready(t) once for every tensor, wait(). Collective; the order of the tensors may
  // differ between ranks. begin() takes the memory of all n values; those of tensor t must be final when ready(t) is
  // called and stay until wait() (empty: no gradient, all tensors count as zero). ready() may be called from any
  // thread. Between begin() and wait() the communicator belongs to the exchanging thread.
  void begin(Gradient gradient, float scale = 1.0F);
  void ready(std::size_t tensor);
  // While tensors are missing: UsageError, and the step goes on. Otherwise ends the step: returns its update, or throws
  // its error. After a UsageError, or an update with `skipped`, no bucket has changed on any rank (an accumulator that
  // overflows is the exception, as in Reducer). After a CommError all further steps fail at once.
  Update wait();

  // begin(), ready() for all, wait().
  Update step(Gradient gradient, float scale = 1.0F) override;
  Update flush() override;

  // Refused, as propose() is; version 1.0 had it.
  void begin_proposal(Gradient gradient, float scale = 1.0F) { propose(gradient, scale); }

  // Not while a step is in flight.
  CooView sent() const override;
  void subtract_unsent(std::span<float> x) const override;
  double unsent_norm() const override;
  StepTimes times() const override;  // sums over the buckets
  // Sums over the buckets; the first step's comparison of tensors counts as well. Thresholds belong to each bucket
  // (reducer(b).metrics()) and are 0 here; preset is empty where auto chose several.
  StepMetrics metrics() const;
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
  std::size_t exchanged() const;

 private:
  using Exchange = std::function<Update(std::size_t bucket)>;

  void launch(Exchange exchange);
  bool run(std::size_t bucket);
  static constexpr std::string_view kStepCall = "step() or flush()";
  void agree(std::string_view call);
  void share_profile(std::size_t bucket);
  void undo();
  Update join();
  Update finish_all();
  void check_idle(std::string_view what) const;
  bool can_undo() const;
  void write(StateWriter& state) const override;
  std::vector<std::span<const std::byte>> read(std::span<const std::byte> state) const;
  void load_buckets(const std::function<void(std::size_t bucket)>& load);

  std::vector<Index> tensors_;
  std::unique_ptr<Communicator> traced_;  // around the caller's, when messages are traced
  Communicator& comm_;
  NanPolicy nan_policy_;
  TraceRow trace_;  // the caller's; the exchanging thread has the next one
  std::vector<Bucket> buckets_;
  Index n_;
  std::string description_;             // tensors and buckets
  std::vector<std::size_t> bucket_of_;  // by tensor
  std::vector<std::unique_ptr<Reducer>> reducers_;
  Workspace work_;

  // The step in flight; the exchanging thread's until it is over.
  Exchange exchange_;
  bool agreed_ = false;
  std::vector<Update> updates_;             // by bucket
  std::vector<ReducerSnapshot> snapshots_;  // by bucket, the last one's unused

  mutable std::mutex mutex_;  // guards the next two
  bool in_flight_ = false;
  std::vector<char> is_ready_;  // by tensor

  // Results of the last step, in flat indices.
  SparseVector mean_;
  std::vector<float> dense_mean_;
  SparseVector sent_;
  std::unique_ptr<StepLog> log_;
  std::string broken_;  // the error after which nothing works any more

  std::unique_ptr<OrderedWorker> worker_;  // last: its thread ends before anything else does
};

}  // namespace oktopk
