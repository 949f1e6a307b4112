// SPDX-License-Identifier: Apache-2.0
#include "tools/study/stream.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "tests/laws/inputs.h"

namespace oktopk {
namespace {

constexpr int kTurn = 16;                  // steps in which the signal turns to the next one
constexpr int kCommonRank = 1 << 20;       // the noise of this rank is the common signal
constexpr std::uint64_t kSpikeEvery = 40;  // steps, on average
constexpr std::uint64_t kPatternSeed = 1'000'003;

}  // namespace

Stream::Stream(const SourceOptions& options, double common) : options_(options), common_(common) {
  require(options.steps >= 1, "stream: steps = ", options.steps, ", but it must be at least 1");
  require(common >= 0 && common <= 1, "stream: common = ", common, ", but it must be in 0..1");
}

bool Stream::is_spike(int step) const {
  if (options_.data == "calm" || step == 0) return false;
  return Random(options_.seed, 77, static_cast<std::uint64_t>(step)).below(kSpikeEvery) == 0;
}

double Stream::scale(int step) const {
  if (options_.data == "calm") return 1;
  const int drops = (step >= options_.steps / 2) + (step >= options_.steps * 3 / 4);
  const double drift = 0.7 * std::sin(4 * std::numbers::pi * step / options_.steps);
  return std::exp(drift) * std::pow(0.1, drops) * (is_spike(step) ? 10 : 1);
}

int Stream::pattern(int step) const {
  if (options_.data == "calm") return 0;
  return (step >= options_.steps / 4) + (step >= options_.steps * 5 / 8);
}

std::uint64_t Stream::seed_of(int pattern) const {
  return options_.seed + kPatternSeed * static_cast<std::uint64_t>(pattern);
}

const std::vector<float>& Stream::key(std::size_t slot, int number, int pattern) {
  Key& key = keys_[slot];
  const std::pair name{number, pattern};
  if (key.name != name) {
    key.values =
        make_input(Input::layered, options_.n, kCommonRank, static_cast<std::uint64_t>(number), seed_of(pattern));
    key.name = name;
  }
  return key.values;
}

void Stream::gradient(int rank, int step, std::vector<float>& out) {
  const int now = pattern(step);
  out = make_input(Input::layered, options_.n, rank, static_cast<std::uint64_t>(step), seed_of(now));
  // Sine and cosine keep the variance while one signal turns into the next.
  const int number = step / kTurn;
  const double angle = std::numbers::pi / 2 * (step % kTurn) / kTurn;
  const auto even = static_cast<std::size_t>(number % 2);
  const std::vector<float>& from = key(even, number, now);
  const std::vector<float>& to = key(1 - even, number + 1, now);
  const double whole = scale(step);
  const auto noise = static_cast<float>(whole * std::sqrt(1 - common_));
  const auto a = static_cast<float>(whole * std::sqrt(common_) * std::cos(angle));
  const auto b = static_cast<float>(whole * std::sqrt(common_) * std::sin(angle));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = noise * out[i] + a * from[i] + b * to[i];
}

void check_source(const std::string& data) {
  if (data == "calm" || data == "rough" || data == "identical") return;
  const bool known = std::ranges::any_of(inputs(), [&](const InputInfo& i) { return i.name == data; });
  if (known) return;
  std::string names = "calm, rough, identical";
  for (const InputInfo& input : inputs()) names += ", " + std::string(input.name);
  fail<UsageError>("unknown data '", data, "'; there are: ", names);
}

Source make_source(const SourceOptions& o, int rank) {
  check_source(o.data);
  if (o.data == "calm" || o.data == "rough") {
    const auto stream = std::make_shared<Stream>(o);
    return [stream, rank](int step, std::vector<float>& out) { stream->gradient(rank, step, out); };
  }
  const bool identical = o.data == "identical";
  const Input input = identical ? Input::gaussian : find_input(o.data);
  const int whose = identical ? 0 : rank;
  return [o, input, whose](int step, std::vector<float>& out) {
    out = make_input(input, o.n, whose, static_cast<std::uint64_t>(step), o.seed);
  };
}

}  // namespace oktopk
