// SPDX-License-Identifier: Apache-2.0
// The part of an optimiser that differs between SGD and Adam, and its state. Optimiser (optimiser.h) calls it around
// each synchronisation. Knows neither ranks nor messages.
#pragma once

#include <locale>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "oktopk/base/state.h"
#include "oktopk/optim/optimiser.h"

namespace oktopk {

// scale * values: a gradient with its clipping factor, or what a rank adds to its accumulator.
struct ScaledValues {
  std::span<const float> values;
  float scale = 1;
};

// Options that all rules have, and n.
struct RuleBasics {
  std::size_t n = 0;
  float learning_rate = 0;
  float clip_norm = 0;
  Sparsify sparsify = Sparsify::gradients;
  bool look_ahead = false;
  float decoupled_decay = 0;
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
  explicit UpdateRule(const RuleBasics& of) : basics(of) {}
  virtual ~UpdateRule() = default;

  virtual float scale() const = 0;
  // prepare() gives what this rank adds to its accumulator. It changes no state: the step may still be refused or
  // skipped.
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

  RuleBasics basics;

 protected:
  std::size_t n() const { return basics.n; }
  bool sparsifies_updates() const { return basics.sparsify == Sparsify::updates; }
};

}  // namespace oktopk
