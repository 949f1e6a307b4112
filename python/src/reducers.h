// SPDX-License-Identifier: Apache-2.0
// Reducer, NodeReducer and BucketedReducer as Python holds them: the synchroniser, its last update, and the arrays that
// it works on. The GIL is released while a step runs; a communicator written in Python takes it for its messages.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "python/src/arrays.h"
#include "python/src/options.h"

namespace oktopk::python {

namespace nb = nanobind;

using HostFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The last update of a synchroniser, and the arrays that it works on.
class PySynchroniser {
 public:
  explicit PySynchroniser(const nb::dict& options) : options_(nb::steal<nb::dict>(PyDict_Copy(options.ptr()))) {}
  virtual ~PySynchroniser() = default;

  Synchroniser& sync() const { return *sync_; }
  const Update& update() const { return update_; }

  void step(const std::optional<AnyArray>& gradient, float scale) {
    const Gradient input = gradient ? as_gradient(*gradient, "step") : Gradient();
    run([&] { return sync_->step(input, scale); });
  }
  void flush() {
    run([&] { return sync_->flush(); });
  }

  // Writes the mean times factor over the whole array.
  void write_update(const HostFloats& out, float factor) const {
    const std::span<float> x(out.data(), out.size());
    require(x.size() == sync_->n(), "write_update: ", x.size(), " values, but n = ", sync_->n());
    const nb::gil_scoped_release free;
    if (!update_.is_dense()) std::fill(x.begin(), x.end(), 0.0F);
    update_.for_each([&](Index i, float mean) { x[i] = factor * mean; });
  }

 protected:
  template <class Act>
  void run(const Act& act) {
    const nb::gil_scoped_release free;
    update_ = {};
    update_ = act();
  }

  nb::dict options_;  // keeps a trace alive
  std::unique_ptr<Synchroniser> sync_;
  Update update_;
};

// A Reducer; with the option group_size a NodeReducer, whose state lives in the Reducer of the node's leader.
class PyReducer : public PySynchroniser {
 public:
  PyReducer(Communicator& comm, std::uint64_t n, const nb::dict& options, bool external_dense)
      : PySynchroniser(options) {
    ReducerOptions read = read_options(options);
    const std::optional<int> group = read_group_size(options);
    read.choice.external_dense = external_dense && !group;
    const nb::gil_scoped_release free;  // the constructor of a NodeReducer is collective
    if (group) {
      auto node = std::make_unique<NodeReducer>(comm, checked_n(n), read, NodeOptions{.group = *group});
      node_ = node.get();
      reducer_ = node->reducer();
      sync_ = std::move(node);
    } else {
      auto reducer = std::make_unique<Reducer>(comm, checked_n(n), read);
      reducer_ = reducer.get();
      sync_ = std::move(reducer);
    }
  }

  // Null on ranks that do not lead their node, where nothing is ever unsent.
  Reducer* own() const { return reducer_; }
  Reducer& reducer() const {
    require(reducer_ != nullptr, "reducer: this rank does not lead its node, and the leader has the state");
    return *reducer_;
  }
  const NodeReducer* node() const { return node_; }

  std::size_t k() const { return node_ ? node_->k() : reducer_->k(); }
  std::uint64_t steps() const { return node_ ? node_->steps() : reducer_->steps(); }
  int ranks_led() const { return !reducer_ ? 0 : node_ ? node_->node_size() : 1; }
  void forget() { node_ ? node_->forget() : reducer_->forget(); }
  void end_external(const ExternalStep& made) { update_ = reducer().end_external(made); }

  void take_unsent(std::span<float> out) {
    require(out.size() == sync_->n(), "take_unsent: ", out.size(), " values, but n = ", sync_->n());
    if (reducer_)
      reducer_->take_unsent(out);
    else
      std::fill(out.begin(), out.end(), 0.0F);
  }
  void give_unsent(std::span<const float> values) {
    if (reducer_) return reducer_->give_unsent(values);
    require(std::all_of(values.begin(), values.end(), [](float x) { return x == 0; }),
            "give_unsent: this rank does not lead its node, so only zeros can be unsent here");
  }
  void begin_at(const DensityPlan::Pace& pace) {
    if (reducer_) state_of(*reducer_).density.begin_at(pace);
    if (node_) node_->set_steps(pace.steps);
  }

  void keep_snapshot() {
    if (reducer_) state_of(*reducer_).copy_to(snapshot_.emplace());
    steps_before_ = steps();
  }
  void go_back() {
    require(steps_before_.has_value(), "go_back: no snapshot was kept");
    if (reducer_) state_of(*reducer_).go_back(*snapshot_);
    if (node_) node_->set_steps(*steps_before_);
    update_ = {};
  }

  // A rank that does not lead its node sends to its leader only, which no metrics count.
  StepMetrics metrics() const {
    if (reducer_) return reducer_->metrics();
    return {.step = steps(),
            .n = sync_->n(),
            .k = k(),
            .selected = sync_->sent().size(),
            .gathered = update_.size(),
            .times = sync_->times(),
            .is_dense = update_.is_dense(),
            .skipped = update_.skipped};
  }

 private:
  Reducer* reducer_ = nullptr;
  NodeReducer* node_ = nullptr;
  std::optional<ReducerSnapshot> snapshot_;
  std::optional<std::uint64_t> steps_before_;  // the snapshot
};

// One step in pieces; the gradient is borrowed until wait().
class PyBucketedReducer : public PySynchroniser {
 public:
  PyBucketedReducer(Communicator& comm, std::vector<Index> tensors, const nb::dict& options, const std::string& policy,
                    std::size_t values)
      : PySynchroniser(options) {
    require(!read_group_size(options), "bucketed reducer: group_size, but buckets are exchanged between all ranks");
    const FusionOptions fusion{.policy = find_fusion_policy(policy), .values = values};
    auto made = std::make_unique<BucketedReducer>(comm, std::move(tensors), read_options(options), fusion);
    buckets_ = made.get();
    sync_ = std::move(made);
  }
  // The exchanging thread may need the GIL to come to its end.
  ~PyBucketedReducer() override {
    const nb::gil_scoped_release free;
    sync_.reset();
  }

  void begin(const AnyArray& gradient, float scale) {
    buckets_->begin(as_gradient(gradient, "begin"), scale);
    gradient_ = gradient;
  }
  void ready(std::size_t tensor) { buckets_->ready(tensor); }
  void wait() {
    run([&] { return buckets_->wait(); });
    gradient_.reset();
  }
  // (first tensor, one past the last) of each bucket, in the order of their exchange.
  std::vector<std::pair<std::size_t, std::size_t>> buckets() const {
    std::vector<std::pair<std::size_t, std::size_t>> all;
    for (const Bucket& bucket : buckets_->buckets()) all.emplace_back(bucket.first, bucket.end);
    return all;
  }
  StepMetrics metrics() const { return buckets_->metrics(); }

 private:
  BucketedReducer* buckets_ = nullptr;
  std::optional<AnyArray> gradient_;  // of the step in flight
};

}  // namespace oktopk::python
