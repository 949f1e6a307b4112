// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/plan.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/reduce/reducer_options.h"

namespace oktopk::faults {
namespace {

using std::chrono::milliseconds;
constexpr int kAttemptsWithFaults = 3;
constexpr std::array kNames = {"crash", "vanish", "pause", "cut", "flip"};
constexpr std::array kArbiterNames = {"stop of the arbiter", "restart of the arbiter",
                                      "restart of the arbiter with state", "arbiter cut off",
                                      "connections with the arbiter reset"};

template <class Values>
auto pick(Random& random, const Values& values) {
  return values[random.below(std::size(values))];
}

Codec draw_codec(Random& random) {
  constexpr std::array kIndex = {IndexCoding::coo32, IndexCoding::u16_blocks, IndexCoding::bit_packed,
                                 IndexCoding::elias_fano, IndexCoding::bitmap};
  constexpr std::array kValue = {ValueCoding::fp32, ValueCoding::fp32, ValueCoding::bf16, ValueCoding::log8,
                                 ValueCoding::log4};
  return {pick(random, kIndex), pick(random, kValue)};
}

ReducerOptions draw_options(Random& random, Index n) {
  const Preset& preset = pick(random, presets());
  ReducerOptions options;
  options.preset = preset.name;
  options.k = 1 + random.below(std::max<Index>(n / 4, 1));
  options.allreduce.codec = draw_codec(random);
  options.allreduce.residual = pick(random, preset.residuals);
  if (!preset.conserves_mass(options.allreduce.residual)) options.allreduce.residual = preset.residuals.front();
  options.allreduce.tau = 2 + static_cast<int>(random.below(4));
  options.allreduce.tau_prime = 1 + static_cast<int>(random.below(4));
  options.allreduce.skips = pick(random, std::array{"halving", "direct", "power"});
  if (random.below(4) == 0) options.warmup = dense_warmup(1);
  options.nan_policy = random.below(4) == 0 ? NanPolicy::local : NanPolicy::error;
  return only_used(options);
}

Weather draw_weather(Random& random) {
  Weather weather;
  weather.latency = std::chrono::microseconds(1 + random.below(2000));
  weather.slow = random.below(2) == 0 ? 0 : random.uniform() * 0.2;
  weather.stall = random.below(2) == 0 ? 0 : random.uniform() * 0.3;
  return weather;
}

Fault draw_fault(FaultKind kind, int rank, int P, Random& random) {
  Fault fault{.kind = kind, .rank = rank};
  fault.peer = (rank + 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(P - 1)))) % P;
  fault.at = random.below(std::uint64_t{1} << random.below(8));
  if (random.below(2) == 0) fault.delay = std::chrono::microseconds(random.below(3000));
  // Shorter and longer than the timeout of a minute.
  fault.length = milliseconds(1 + random.below(std::uint64_t{1} << random.below(20)));
  return fault;
}

}  // namespace

std::string to_string(FaultKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

bool Plan::is_exact() const {
  const ValueCoding value = options.allreduce.codec.value_or(Codec{}).value;
  return value == ValueCoding::fp32 || value == ValueCoding::bf16;
}

bool Plan::has_checksums() const {
  return options.preset != "dense" && options.warmup.empty() && shape != Shape::nodes;
}

Plan draw_plan(std::uint64_t seed, const Limits& limits) {
  Random random(seed, 1);
  Plan plan;
  plan.seed = seed;
  plan.P = limits.least_ranks +
           static_cast<int>(random.below(static_cast<std::uint64_t>(limits.most_ranks - limits.least_ranks + 1)));
  plan.n = static_cast<Index>(1 + random.below(std::uint64_t{1} << (1 + random.below(11))));
  plan.steps = 1 + random.below(limits.steps);
  plan.save_interval = 1 + random.below(3);
  plan.shape = pick(random, std::array{Shape::plain, Shape::plain, Shape::buckets, Shape::nodes});
  plan.input = pick(random, std::array{Input::dyadic, Input::skewed, Input::tied, Input::equal, Input::lonely});
  plan.options = draw_options(random, plan.n);
  plan.weather = draw_weather(random);
  plan.fault_rate = random.below(4) == 0 ? 0 : random.uniform() * 0.3;
  return plan;
}

Plan draw_elastic_plan(std::uint64_t seed, Limits limits) {
  limits.least_ranks = std::max(limits.least_ranks, 2);
  Plan plan = draw_plan(seed, limits);
  plan.shape = Shape::plain;
  return plan;
}

std::uint64_t last_step_of(const Plan& plan, std::uint64_t member) {
  Random random(plan.seed, 3, member);
  return random.below(5) == 0 ? random.below(plan.steps) : plan.steps - 1;
}

std::vector<Fault> draw_faults(const Plan& plan, int attempt) {
  std::vector<Fault> faults;
  if (attempt >= kAttemptsWithFaults || plan.P == 1) return faults;
  Random random(plan.seed, 2, static_cast<std::uint64_t>(attempt));
  for (std::size_t kind = 0; kind < kNames.size(); ++kind) {
    const double rate = plan.fault_rate * random.uniform();
    for (int rank = 0; rank < plan.P; ++rank) {
      const Fault fault = draw_fault(static_cast<FaultKind>(kind), rank, plan.P, random);
      if (random.uniform() < rate) faults.push_back(fault);
    }
  }
  if (!plan.has_checksums()) std::erase_if(faults, [](const Fault& f) { return f.kind == FaultKind::flip; });
  return faults;
}

std::string describe(const Plan& plan) {
  constexpr std::array kShapes = {"plain", "buckets", "nodes"};
  const AllreduceOptions& o = plan.options.allreduce;
  return text_of("seed ", plan.seed, ": P = ", plan.P, ", n = ", plan.n, ", k = ", plan.options.k, ", preset ",
                 plan.options.preset, ", codec ", to_string(o.codec.value_or(Codec{})), ", residual ",
                 to_string(o.residual), ", shape ", kShapes[static_cast<std::size_t>(plan.shape)], ", steps ",
                 plan.steps, ", saved every ", plan.save_interval);
}

std::string describe(const Fault& fault) {
  std::string text = text_of(to_string(fault.kind), " of rank ", fault.rank, " at its operation ", fault.at);
  if (fault.kind == FaultKind::cut) text += text_of(", connection to rank ", fault.peer);
  if (fault.kind == FaultKind::pause)
    text += text_of(" for ", std::chrono::duration<double>(fault.length).count(), " s");
  return text;
}

std::vector<ArbiterFault> draw_arbiter_faults(const Plan& plan) {
  Random random(plan.seed, 4);
  std::vector<ArbiterFault> faults(random.below(4));  // a quarter of all seeds has none
  for (ArbiterFault& fault : faults) {
    fault.kind = static_cast<ArbiterFaultKind>(random.below(kArbiterNames.size()));
    fault.is_at_decision = random.below(2) == 0;
    fault.at = fault.is_at_decision ? random.below(4) : random.below(std::uint64_t{1} << random.below(8));
    if (random.below(2) == 0) fault.delay = milliseconds(random.below(std::uint64_t{1} << random.below(12)));
    // Shorter and longer than `reattach`. Only a stop may be longer than `grace`.
    const std::uint64_t most = fault.kind == ArbiterFaultKind::stop ? 20 : 16;
    fault.length = milliseconds(1 + random.below(std::uint64_t{1} << random.below(most)));
    fault.actors = random.below(3) == 0 ? ~std::uint64_t{0} : random.below(~std::uint64_t{0});
    fault.is_silent = fault.kind == ArbiterFaultKind::cut && random.below(2) == 0;
  }
  return faults;
}

std::string describe(const ArbiterFault& fault) {
  std::string text = text_of(kArbiterNames[static_cast<std::size_t>(fault.kind)], " at ",
                             fault.is_at_decision ? "decision " : "word ", fault.at);
  if (fault.kind != ArbiterFaultKind::reset)
    text += text_of(" for ", std::chrono::duration<double>(fault.length).count(), " s");
  return text + (fault.is_silent ? ", silently" : "");
}

}  // namespace oktopk::faults
