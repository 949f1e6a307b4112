// SPDX-License-Identifier: Apache-2.0
// Reducer, NodeReducer and BucketedReducer as Python holds them: the synchroniser, its last update, and the arrays that
// it works on. The GIL is released while a step runs; a communicator written in Python takes it for its messages.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/gpu_steps.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "python/src/arrays.h"
#include "python/src/gil.h"
#include "python/src/options.h"

namespace oktopk::python {

namespace nb = nanobind;

using HostFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline FloatType checked_type(std::uint32_t type) {
  require(type <= static_cast<std::uint32_t>(FloatType::fp16), "reducer: type = ", type,
          ", but it must be 0 (float32), 1 (bfloat16) or 2 (float16)");
  return static_cast<FloatType>(type);
}

// A thread in a call of a synchroniser.
struct User {
  explicit User(std::atomic<int>* all) : count(all) {
    if (count != nullptr) ++*count;
  }
  ~User() {
    if (count != nullptr) --*count;
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;
  std::atomic<int>* count;
};

// The last update of a synchroniser, and the arrays that it works on.
class PySynchroniser {
 public:
  explicit PySynchroniser(const nb::dict& options) : options_(nb::steal<nb::dict>(PyDict_Copy(options.ptr()))) {}
  virtual ~PySynchroniser() = default;

  // Waits for what a GPU still does; its errors show here, and not in a state.
  virtual void check_before_save() {}

  Synchroniser& sync() const {
    if (sync_ == nullptr) fail<CommError>("reducer: its world is closed");
    return *sync_;
  }
  const Update& update() const { return update_; }

  void step(const std::optional<AnyArray>& gradient, float scale) {
    const Gradient input = gradient ? as_gradient(*gradient, "step") : Gradient();
    run([&] { return sync().step(input, scale); });
  }
  void flush() {
    run([&] { return sync().flush(); });
  }

  // Runs without the GIL; the world stays meanwhile.
  template <class Act>
  void use(const Act& act) {
    const User user(users_);
    const WithoutGil free;
    act();
  }

  // Writes the mean times factor over the whole array.
  void write_update(const HostFloats& out, float factor) const {
    const std::span<float> x(out.data(), out.size());
    require(x.size() == sync().n(), "write_update: ", x.size(), " values, but n = ", sync().n());
    const WithoutGil free;
    if (!update_.is_dense()) std::fill(x.begin(), x.end(), 0.0F);
    update_.for_each([&](Index i, float mean) { x[i] = factor * mean; });
  }

 protected:
  template <class Act>
  void run(const Act& act) {
    use([&] {
      update_ = {};
      update_ = act();
    });
  }

  // Counts the threads in use() there.
  void count_users(std::atomic<int>& users) { users_ = &users; }

  nb::dict options_;  // keeps a trace alive
  std::unique_ptr<Synchroniser> sync_;
  Update update_;

 private:
  std::atomic<int>* users_ = nullptr;
};

// A Reducer; with the option group_size a NodeReducer, whose state lives in the Reducer of the node's leader.
class PyReducer : public PySynchroniser {
 public:
  PyReducer(Communicator& comm, std::uint64_t n, const nb::dict& options, bool external_dense)
      : PySynchroniser(options), comm_(&comm), read_(read_options(options)) {
    const std::optional<int> group = read_group_size(options);
    read_.choice.external_dense = external_dense && !group;
    const WithoutGil free;  // the constructor of a NodeReducer is collective
    if (group) {
      auto node = std::make_unique<NodeReducer>(comm, checked_n(n), read_, NodeOptions{.group = *group});
      node_ = node.get();
      reducer_ = node->reducer();
      sync_ = std::move(node);
    } else {
      hold(std::make_unique<Reducer>(comm, checked_n(n), read_));
    }
  }

  // Moves what is of length n to this device. Nothing that later steps depend on changes. Local, but all ranks must do
  // it together: the next step begins with the agreement of the ranks.
  void use_device(std::shared_ptr<const Device> device) {
    require(node_ == nullptr, "use_device: the ranks of a node sum in host memory, so group_size needs the CPU");
    ReducerSnapshot now;
    state_of(*reducer_).copy_to(now);
    ReducerOptions there = read_;
    there.device = std::move(device);
    auto moved = std::make_unique<Reducer>(*comm_, reducer_->n(), there);
    state_of(*moved).go_back(now);
    update_ = {};
    read_.device = there.device;
    hold(std::move(moved));
  }

  // A step in two halves, between all ranks.
  void propose(const std::optional<AnyArray>& gradient, float scale) {
    const Gradient input = gradient ? as_gradient(*gradient, "propose") : Gradient();
    run([&] { return tentative().propose(input, scale); });
  }
  void move_to(Communicator& comm) {
    std::unique_ptr<Reducer> moved = tentative().moved_to(comm);
    update_ = {};
    comm_ = &comm;
    hold(std::move(moved));
  }
  Reducer& tentative() const {
    require(node_ == nullptr, "reducer: tentative steps with group_size, but they are exchanged by all ranks");
    return *reducer_;
  }

  // A step with a gradient in the memory of the GPU of use_device(). It is ready when the work on `stream` so far is
  // done; so is all memory of the Reducer after the step.
  void step_on_gpu(std::uintptr_t address, std::uint64_t n, std::uint32_t type, float scale, std::uintptr_t stream) {
    require(read_.device != nullptr, "step_on_gpu: use_device() comes first");
    const Gradient input(reinterpret_cast<const void*>(address), n, checked_type(type));
    run([&] {
      read_.device->use_stream(reinterpret_cast<void*>(stream));
      return sync_->step(input, scale);
    });
  }

  // give_unsent() with values in the memory of the GPU, which must be finite.
  void give_on_gpu(std::uintptr_t address, std::uintptr_t stream) {
    require(read_.device != nullptr, "give_on_gpu: use_device() comes first");
    read_.device->use_stream(reinterpret_cast<void*>(stream));
    Unsent& unsent = state_of(*reducer_).unsent;
    const Gradient values(reinterpret_cast<const void*>(address), reducer_->n(), FloatType::fp32);
    read_.device->accumulate(unsent.residual().begin(values, 1.0F));
    unsent.residual().accumulated();
    unsent.set_may_exist(true);
  }

  void drop_update() { update_ = {}; }

  // Steps that stay on the GPU, for preset slots.
  GpuSteps& gpu_steps() {
    if (!gpu_steps_) gpu_steps_.emplace(reducer());
    return *gpu_steps_;
  }

  // The values that the owner memory holds from index `begin` of its region on, zeros between its tiles.
  std::vector<float> memory_from(Index begin, const OwnerMemory& memory) const {
    const std::vector<float> places = host_copy(memory.values);
    std::vector<float> values;
    for (std::size_t place = 0; place < places.size(); ++place) {
      const std::uint64_t i = memory.index(place);
      if (i >= sync_->n()) break;
      values.resize(i - begin + 1);
      values.back() = places[place];
    }
    return values;
  }

  // Values of a Reducer, wherever they lie.
  std::vector<float> host_copy(std::span<const float> values) const {
    std::vector<float> host(values.size());
    state_of(*reducer_).setting.options.device->read(values, host.data());
    return host;
  }

  void check_before_save() override {
    if (gpu_steps_) gpu_steps_->report();
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
  bool is_warm() const { return node_ ? node_->is_warm() : state_of(*reducer_).density.is_warm(); }
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
  void hold(std::unique_ptr<Reducer> reducer) {
    gpu_steps_.reset();
    reducer_ = reducer.get();
    sync_ = std::move(reducer);
  }

  Communicator* comm_;
  ReducerOptions read_;
  Reducer* reducer_ = nullptr;
  NodeReducer* node_ = nullptr;
  std::optional<GpuSteps> gpu_steps_;
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
    const WithoutGil free;
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

nb::dict as_dict(const StepMetrics& metrics);  // bind_reducer.cc

}  // namespace oktopk::python
