// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/optimiser.h"

#include <cmath>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/optim/update_rule.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {
namespace {

constexpr EnumNames<Sparsify, 2> kSparsify("thing to sparsify", "gradients", "updates");

void check_not_negative(std::string_view name, float value) {
  require(value >= 0 && std::isfinite(value), "optimiser: ", name, " = ", value,
          ", but it must be finite and not negative");
}

void check_rate(float rate, float decay) {
  check_not_negative("learning_rate", rate);
  require(double{rate} * decay < 1, "optimiser: learning_rate = ", rate, ", weight_decay = ", decay,
          ", but their product must be less than 1");
}

}  // namespace

std::string_view to_string(Sparsify sparsify) { return kSparsify[sparsify]; }
Sparsify find_sparsify(std::string_view name) { return kSparsify.find(name); }

float clip_factor(Communicator& comm, Gradient gradient, float clip_norm) {
  require(clip_norm > 0 && std::isfinite(clip_norm), "clip_factor: clip_norm = ", clip_norm,
          ", but it must be positive and finite");
  Workspace work;
  double squares = gradient.dispatch([&](const auto* values) {
    double sum = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) sum += double{to_float(values[i])} * to_float(values[i]);
    return sum;
  });
  squares = allreduce_small(comm, squares, Reduction::sum, work);
  const double norm = std::sqrt(squares / comm.size());
  if (!std::isfinite(norm) || norm <= clip_norm) return 1;
  return static_cast<float>(clip_norm / norm);
}

Optimiser::Optimiser(Synchroniser& sync, std::unique_ptr<UpdateRule> rule) : sync_(sync), rule_(std::move(rule)) {
  check_not_negative("clip_norm", rule_->clip_norm);
  check_not_negative("weight_decay", rule_->decoupled_decay);
  check_rate(rule_->learning_rate, rule_->decoupled_decay);
}

Optimiser::~Optimiser() = default;

float Optimiser::scale() const { return rule_->scale(); }
float Optimiser::learning_rate() const { return rule_->learning_rate; }

void Optimiser::set_learning_rate(float rate) {
  check_rate(rate, rule_->decoupled_decay);
  rule_->learning_rate = rate;
}

void Optimiser::check_weights(std::span<const float> weights) const {
  require(weights.size() == sync_.n(), "optimiser: ", weights.size(), " weights, but n = ", sync_.n());
}

std::span<const float> Optimiser::point(std::span<const float> weights) {
  check_weights(weights);
  if (!rule_->looks_ahead) return weights;
  looked_.assign(weights.begin(), weights.end());
  sync_.subtract_unsent(looked_);
  return looked_;
}

void Optimiser::catch_up(std::span<float> weights) {
  check_weights(weights);
  rule_->catch_up(weights);
}

// Once: with different options or learning rates, the weights of the ranks would drift apart silently.
void Optimiser::agree(std::string_view call) {
  if (agreed_) return;
  sync_.compare("optimiser", in_words("call ", call, ", ", rule_->description(), ", learning rate ", learning_rate()));
  agreed_ = true;
}

Update Optimiser::step(std::span<float> weights, std::span<const float> gradient) {
  check_weights(weights);
  agree();
  if (gradient.empty()) {
    zeros_.resize(sync_.n());
    gradient = zeros_;
  }
  ScaledValues input{gradient};
  const float clip_norm = rule_->clip_norm;
  if (clip_norm > 0)
    sync_.collective(std::as_writable_bytes(std::span(&input.scale, 1)),
                     [&](Communicator& comm) { input.scale = clip_factor(comm, gradient, clip_norm); });
  // The synchroniser refuses a gradient of the wrong size, on all ranks together.
  const ScaledValues mine = gradient.size() == sync_.n() ? rule_->prepare(weights, input) : input;
  const Update update = sync_.step(mine.values, mine.scale);
  if (update.skipped) return update;
  rule_->settle(weights, input, sync_.sent().idx);
  rule_->apply_mean(weights, update);
  return update;
}

void Optimiser::apply(std::span<float> weights, const Update& update) {
  check_weights(weights);
  require(!rule_->sparsifies_updates,
          "optimiser: apply() cannot prepare gradients: with sparsify = updates call step()");
  agree();
  if (!update.skipped) rule_->apply_mean(weights, update);
}

void Optimiser::flush(std::span<float> weights) {
  check_weights(weights);
  agree();
  rule_->apply_flushed(weights, sync_.flush());
}

Bytes Optimiser::save() const {
  return write_state([&](StateWriter& state) { write(state); });
}

void Optimiser::write(StateWriter& state) const {
  write_rule(state);
  state.put_state([&](StateWriter& inner) { sync_.write(inner); });
}

void Optimiser::write_rule(StateWriter& state) const {
  state.put_text(rule_->description());
  state.put(learning_rate());
  rule_->save(state);
}

Bytes Optimiser::save_shared() const {
  require(!rule_->sparsifies_updates, "optimiser: save_shared() with sparsify = updates, where nothing is shared");
  return write_state([&](StateWriter& state) { write_rule(state); });
}

void Optimiser::load_shared(std::span<const std::byte> bytes) {
  require(!rule_->sparsifies_updates, "optimiser: load_shared() with sparsify = updates, where nothing is shared");
  StateReader state(bytes);
  std::unique_ptr<UpdateRule> rule = read_rule(state);
  state.finish();
  rule_ = std::move(rule);
}

Optimiser::Saved Optimiser::open(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  require_saver(state, "an optimiser");
  std::unique_ptr<UpdateRule> rule = read_rule(state);
  const auto synchroniser = state.take_view();
  state.finish();
  return {std::move(rule), synchroniser};
}

std::unique_ptr<UpdateRule> Optimiser::read_rule(StateReader& state) const {
  const std::string options = state.take_text();
  const std::string mine = rule_->description();
  const auto [theirs, ours] = first_difference(options, mine);
  require(options == mine, "state: saved by another optimiser: \"", theirs, "\", but this one has \"", ours, "\"");
  std::unique_ptr<UpdateRule> rule = rule_->fresh();
  rule->learning_rate = state.take<float>();
  check_rate(rule->learning_rate, rule->decoupled_decay);
  rule->load(state);
  return rule;
}

// Every rank reads its part of the state, then the synchronisers read theirs; only then anything is replaced.
void Optimiser::load(std::span<const std::byte> state) {
  agree("load()");
  Saved saved;
  Workspace work;
  agree_on_success(sync_.comm(), work, [&] { saved = open(state); }, {Call::Kind::load});
  sync_.load(saved.second);
  rule_ = std::move(saved.first);
}

void Optimiser::load_all(std::size_t count, const ReadState& read) {
  agree("load_all()");
  Saved mine;
  Workspace work;
  const auto open_mine = [&] {
    require(count > 0, "state: no states were given");
    mine = open(read(static_cast<std::size_t>(sync_.comm().rank()) % count));
  };
  agree_on_success(sync_.comm(), work, open_mine, {Call::Kind::load_all});
  sync_.load_all(count, [&](std::size_t r) { return open(read(r)).second; });
  rule_ = std::move(mine.first);
}

}  // namespace oktopk
