// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/gradient_stream.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"

namespace oktopk {
namespace {

struct EventRow {
  StreamEvent kind;
  std::string_view name;
};
constexpr std::array<EventRow, 4> kEvents = {{{StreamEvent::none, "none"},
                                              {StreamEvent::jump, "jump"},
                                              {StreamEvent::zero_first, "zero_first"},
                                              {StreamEvent::rough, "rough"}}};

constexpr std::uint64_t kJumpFrom = 24;
constexpr std::uint64_t kJumpTo = 32;
constexpr float kJump = 1000;
constexpr std::size_t kAligned = 16;  // windows begin at cache lines, as gradients do
constexpr std::size_t kLeastPlaces = 1U << 16U;
constexpr std::size_t kMostPlaces = 1U << 20U;
constexpr std::uint64_t kTurn = 16;           // steps in which the signal turns into the next one
constexpr std::uint64_t kSignal = 1U << 20U;  // stands for the rank of the shared signal
constexpr std::uint64_t kPlaces = 7919;       // separates the random places from the values
constexpr std::uint64_t kSpikeEvery = 40;     // steps, on average
constexpr std::uint64_t kLayoutSeed = 1'000'003;

std::size_t places(Index n) { return std::clamp<std::size_t>(16 * std::size_t{n}, kLeastPlaces, kMostPlaces); }

}  // namespace

StreamEvent find_stream_event(std::string_view name) { return find_row(kEvents, "stream event", name).kind; }

GradientStream::GradientStream(const StreamSpec& spec, int rank) : spec_(spec), rank_(rank) {
  require(spec.steps >= 1, "stream: steps = ", spec.steps, ", but it must be at least 1");
  require(spec.shared >= 0 && spec.shared <= 1, "stream: shared = ", spec.shared, ", but it must be in [0, 1]");
  const bool is_exact = spec.data >= Input::dyadic;
  require(!is_exact || spec.shared == 0, "stream: shared = ", spec.shared,
          ", but only gaussian, laplace and layered data can have a shared signal");
  if (is_exact) return;
  own_ = make_pool(static_cast<std::uint64_t>(rank));
  if (spec.shared > 0) common_ = make_pool(kSignal);
  if (spec.data == Input::layered) lay_out(0);
}

Uninitialised<float> GradientStream::make_pool(std::uint64_t whose) const {
  Random random(spec_.seed, whose + 1000);
  Uninitialised<float> pool(spec_.n + places(spec_.n));
  for (float& x : pool) x = draw_noise(spec_.data, random);
  return pool;
}

std::span<const float> GradientStream::window(const Uninitialised<float>& pool, std::uint64_t whose,
                                              std::uint64_t moment) const {
  Random random(spec_.seed + kPlaces, whose, moment);
  const std::size_t place = kAligned * random.below(places(spec_.n) / kAligned);
  return std::span<const float>(pool).subspan(place, spec_.n);
}

float GradientStream::scale_at(std::uint64_t step) const {
  if (spec_.event == StreamEvent::jump && step >= kJumpFrom && step < kJumpTo) return kJump;
  if (spec_.event == StreamEvent::zero_first && step == 0) return 0;
  if (spec_.event != StreamEvent::rough) return 1;
  const double share = static_cast<double>(step) / static_cast<double>(spec_.steps);
  const bool is_spike = step > 0 && Random(spec_.seed, 77, step).below(kSpikeEvery) == 0;
  const int drops = (share >= 0.5) + (share >= 0.75);
  const double drift = 0.7 * std::sin(4 * std::numbers::pi * share);
  return static_cast<float>(std::exp(drift) * std::pow(0.1, drops) * (is_spike ? 10 : 1));
}

void GradientStream::lay_out(std::uint64_t step) {
  const bool moves = spec_.event == StreamEvent::rough;
  const std::uint64_t layout = moves ? (4 * step >= spec_.steps) + (8 * step >= 5 * spec_.steps) : 0;
  if (layout == layout_ && !layers_.empty()) return;
  layout_ = layout;
  layers_.assign(spec_.n, 1.0F);
  scale_layers(layers_, spec_.seed + kLayoutSeed * layout);
}

std::span<const float> GradientStream::at(std::uint64_t step) {
  const float scale = scale_at(step);
  if (spec_.data >= Input::dyadic) {
    const auto exact = make_input(spec_.data, spec_.n, rank_, step, spec_.seed);
    out_.assign(exact.begin(), exact.end());
    if (scale != 1)
      for (float& x : out_) x *= scale;
    return out_;
  }
  const bool is_plain = scale == 1 && common_.empty() && layers_.empty();
  if (is_plain) return window(own_, static_cast<std::uint64_t>(rank_), step);
  compose(step, scale);
  return out_;
}

// While the signal turns, the squares of its two parts add up to `shared`.
void GradientStream::compose(std::uint64_t step, float scale) {
  const auto noise = window(own_, static_cast<std::uint64_t>(rank_), step);
  const auto a = static_cast<float>(scale * std::sqrt(1 - spec_.shared));
  out_.resize(spec_.n);
  for (std::size_t i = 0; i < out_.size(); ++i) out_[i] = a * noise[i];
  if (!common_.empty()) {
    const std::uint64_t turn = step / kTurn;
    const double angle = std::numbers::pi / 2 * static_cast<double>(step % kTurn) / kTurn;
    const auto from = window(common_, kSignal, turn);
    const auto to = window(common_, kSignal, turn + 1);
    const auto b = static_cast<float>(scale * std::sqrt(spec_.shared) * std::cos(angle));
    const auto c = static_cast<float>(scale * std::sqrt(spec_.shared) * std::sin(angle));
    for (std::size_t i = 0; i < out_.size(); ++i) out_[i] += b * from[i] + c * to[i];
  }
  if (layers_.empty()) return;
  lay_out(step);
  for (std::size_t i = 0; i < out_.size(); ++i) out_[i] *= layers_[i];
}

}  // namespace oktopk
