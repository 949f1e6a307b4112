// SPDX-License-Identifier: Apache-2.0
#include "oktopk/optim/optimiser.h"

#include <array>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <limits>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/optim/gradient_clip.h"
#include "oktopk/reduce/notes.h"

namespace oktopk {
namespace {

struct SparsifyName {
  Sparsify sparsify;
  std::string_view name;
};
constexpr std::array<SparsifyName, 2> kSparsify = {
    {{Sparsify::gradients, "gradients"}, {Sparsify::updates, "updates"}}};

}  // namespace

std::string_view to_string(Sparsify sparsify) { return kSparsify[static_cast<std::size_t>(sparsify)].name; }

Sparsify find_sparsify(std::string_view name) { return find_row(kSparsify, "thing to sparsify", name).sparsify; }

Optimiser::Optimiser(Synchroniser& sync, const Basics& basics) : sync_(sync), n_(sync.n()), basics_(basics) {
  require(basics.clip_norm >= 0 && std::isfinite(basics.clip_norm), "optimiser: clip_norm = ", basics.clip_norm,
          ", but it must be finite and not negative");
  require(basics.decoupled_decay >= 0 && std::isfinite(basics.decoupled_decay),
          "optimiser: weight_decay = ", basics.decoupled_decay, ", but it must be finite and not negative");
  check_rate(basics.learning_rate);
}

void Optimiser::check_rate(float rate) const {
  require(rate >= 0 && std::isfinite(rate), "optimiser: learning_rate = ", rate,
          ", but it must be finite and not negative");
  require(double{rate} * basics_.decoupled_decay < 1, "optimiser: learning_rate = ", rate,
          ", weight_decay = ", basics_.decoupled_decay, ", but their product must be less than 1");
}

void Optimiser::check_weights(std::span<const float> weights) const {
  require(weights.size() == n(), "optimiser: ", weights.size(), " weights, but n = ", n());
}

void Optimiser::set_learning_rate(float rate) {
  check_rate(rate);
  basics_.learning_rate = rate;
}

std::span<const float> Optimiser::point(std::span<const float> weights) {
  check_weights(weights);
  if (!basics_.look_ahead) return weights;
  looked_.assign(weights.begin(), weights.end());
  sync_.subtract_unsent(looked_);
  return looked_;
}

// Once: different options or learning rates would drive the ranks' weights apart, silently.
void Optimiser::agree() {
  if (agreed_) return;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<float>::max_digits10) << description() << ", learning rate "
       << basics_.learning_rate;
  require_equal(sync_.comm(), "optimiser", text.str(), work_);
  agreed_ = true;
}

Update Optimiser::step(std::span<float> weights, std::span<const float> gradient) {
  check_weights(weights);
  agree();
  if (gradient.empty()) {
    zeros_.resize(n());
    gradient = zeros_;
  }
  ScaledGradient input{gradient};
  if (basics_.clip_norm > 0) input.factor = clip_factor(sync_.comm(), gradient, basics_.clip_norm, work_);
  // A gradient of the wrong size is for the synchroniser to refuse, on all ranks together.
  const bool fits = gradient.size() == n();
  const Contribution mine = fits ? prepare(weights, input) : Contribution{gradient};
  const Update update = sync_.step(mine.values, mine.scale);
  if (update.skipped) return update;
  settle(weights, input);
  apply_mean(weights, update);
  return update;
}

void Optimiser::apply(std::span<float> weights, const Update& update) {
  check_weights(weights);
  require(!sparsifies_updates(), "optimiser: apply() cannot prepare gradients: with sparsify = updates call step()");
  agree();
  if (!update.skipped) apply_mean(weights, update);
}

void Optimiser::flush(std::span<float> weights) {
  check_weights(weights);
  agree();
  apply_flushed(weights, sync_.flush());
}

Bytes Optimiser::save() const {
  return write_state([&](StateWriter& state) { write(state); });
}

void Optimiser::write(StateWriter& state) const {
  state.put_text(description());
  state.put(basics_.learning_rate);
  save_to(state);
  state.put_state([&](StateWriter& inner) { sync_.write(inner); });
}

Optimiser::Saved Optimiser::open(std::span<const std::byte> bytes) {
  StateReader state(bytes);
  const std::string options = state.take_text();
  require(options == description(), "state: saved by another optimiser (", options, "), this is ", description());
  Saved saved;
  saved.rate = state.take<float>();
  check_rate(saved.rate);
  saved.adopt = read(state);
  saved.synchroniser = state.take_view();
  state.finish();
  return saved;
}

void Optimiser::adopt(const Saved& saved) {
  saved.adopt();
  basics_.learning_rate = saved.rate;
}

// Nothing is replaced before every rank could read its part of the state and, after that, the
// synchronisers theirs.
void Optimiser::load(std::span<const std::byte> state) {
  Saved saved;
  agree_on_success(sync_.comm(), work_, [&] { saved = open(state); });
  sync_.load(saved.synchroniser);
  adopt(saved);
}

void Optimiser::load_all(std::size_t count, const ReadState& read) {
  Saved mine;
  agree_on_success(sync_.comm(), work_, [&] {
    require(count > 0, "state: no states were given");
    mine = open(read(static_cast<std::size_t>(sync_.comm().rank()) % count));
  });
  sync_.load_all(count, [&](std::size_t r) { return open(read(r)).synchroniser; });
  adopt(mine);
}

void Optimiser::load_all(std::span<const Bytes> states) {
  load_all(states.size(), [&](std::size_t r) { return std::span<const std::byte>(states[r]); });
}

}  // namespace oktopk
