// SPDX-License-Identifier: Apache-2.0
// The part of an optimiser that differs between SGD and Adam, and its state. Optimiser (optimiser.h) calls it around
// each synchronisation. It is independent of ranks and messages.
#pragma once

#include <locale>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "oktopk/base/state.h"
#include "oktopk/optim/optimiser.h"

namespace oktopk {

// scale * values: a gradient with its clipping factor, or the vector that a rank adds to its accumulator.
struct ScaledValues {
  std::span<const float> values;
  float scale = 1;
};

// For description(): the parts one after the other, with numbers that read the same on all machines.
template <class... Parts>
std::string in_words(const Parts&... parts) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(9);
  (text << ... << parts);
  return text.str();
}

class UpdateRule {
 public:
  template <class Options>
  UpdateRule(Index length, const Options& o)
      : n(length),
        learning_rate(o.learning_rate),
        clip_norm(o.clip_norm),
        sparsifies_updates(o.sparsify == Sparsify::updates),
        looks_ahead(o.look_ahead) {}
  virtual ~UpdateRule() = default;

  virtual float scale() const = 0;
  // The vector that this rank adds to its accumulator. Changes no state: the step may still be refused or skipped.
  virtual ScaledValues prepare(std::span<const float> weights, const ScaledValues& gradient) = 0;
  // After the exchange: takes the local state forward. `weights` are still those before the step; `sent` are the
  // indices that this rank sent.
  virtual void settle(std::span<const float> weights, const ScaledValues& gradient, std::span<const Index> sent) = 0;
  virtual void apply_mean(std::span<float> weights, const Update& update) = 0;
  virtual void apply_flushed(std::span<float> weights, const Update& update) = 0;
  virtual void catch_up(std::span<float> /*weights*/) {}

  // All options but the learning rate: equal on all ranks and in a state that is loaded.
  virtual std::string description() const = 0;
  // A rule with the same options, before its first step.
  virtual std::unique_ptr<UpdateRule> fresh() const = 0;
  virtual void save(StateWriter& state) const = 0;
  // UsageError when the state does not fit. REQUIRES: a fresh rule.
  virtual void load(StateReader& state) = 0;

  const Index n;
  float learning_rate;
  const float clip_norm;
  const bool sparsifies_updates;
  const bool looks_ahead;
  float decoupled_decay = 0;  // weight decay beside the gradient

 protected:
  // The mean with zeros where nothing arrived.
  std::span<const float> dense_mean(const Update& update) {
    if (update.is_dense()) return update.dense;
    if (!mean_) mean_.emplace(n);
    return mean_->show(update);
  }

  // Replaces `values` by an array of the same size from a state.
  template <class T>
  static void replace(std::vector<T>& values, std::vector<T> taken, std::string_view what) {
    require(taken.size() == values.size(), "state: ", taken.size(), " values of ", what, ", but ", values.size(),
            " are needed");
    values = std::move(taken);
  }

 private:
  std::optional<DenseMean> mean_;
};

}  // namespace oktopk
