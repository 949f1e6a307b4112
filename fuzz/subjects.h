// SPDX-License-Identifier: Apache-2.0
// One rank alone with an object that saves and loads, for the fuzz target of states and its corpus.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/comm/transports.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk::fuzz {

inline constexpr unsigned kSubjectKinds = 5;

class Subject {
 public:
  Subject(unsigned kind, unsigned preset) {
    ReducerOptions options;
    options.preset = presets()[preset % presets().size()].name;
    options.k = 6;
    if (kind == 1)
      sync_ = std::make_unique<BucketedReducer>(*comm_, std::vector<std::uint64_t>{20, 30}, options,
                                                FusionOptions{.policy = FusionPolicy::tensor});
    else if (kind == 2)
      sync_ = std::make_unique<NodeReducer>(*comm_, kValues, options, NodeOptions{1});
    else
      sync_ = std::make_unique<Reducer>(*comm_, kValues, options);
    if (kind == 3) optimiser_.reset(new SparseSGD(*sync_, {.momentum = 0.9F}));
    if (kind == 4) optimiser_.reset(new SparseAdamW(*sync_, {}));
  }

  void step() {
    for (std::size_t i = 0; i < kValues; ++i) gradient_[i] = static_cast<float>((i * 37 + 11 * turn_) % 64) / 64 - 0.5F;
    ++turn_;
    if (optimiser_)
      optimiser_->step(weights_, gradient_);
    else
      sync_->step(gradient_);
  }
  Bytes save() const { return optimiser_ ? optimiser_->save() : sync_->save(); }
  void load(std::span<const std::byte> state) { optimiser_ ? optimiser_->load(state) : sync_->load(state); }
  void load_all(const std::vector<Bytes>& states) {
    const auto read = [&](std::size_t r) { return std::span<const std::byte>(states[r]); };
    optimiser_ ? optimiser_->load_all(states.size(), read) : sync_->load_all(states.size(), read);
  }

 private:
  static constexpr std::size_t kValues = 50;
  std::unique_ptr<Communicator> comm_ = std::move(make_thread_world(1, std::chrono::seconds(60)).front());
  std::unique_ptr<Synchroniser> sync_;
  std::unique_ptr<Optimiser> optimiser_;
  std::array<float, kValues> gradient_{}, weights_{};
  std::size_t turn_ = 0;
};

}  // namespace oktopk::fuzz
