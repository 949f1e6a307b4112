// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_options.h"

#include <array>
#include <limits>
#include <sstream>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/select/selector.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {
namespace {

constexpr EnumNames<NanPolicy, 3> kNanPolicies("NaN policy", "error", "skip", "local");

// An option that is not at its default, although nobody would look at it.
struct Ignored {
  bool is_given;
  std::string_view option;
  std::string_view reason;
};

void refuse(std::string_view preset, std::initializer_list<Ignored> all) {
  for (const Ignored& each : all)
    require(!each.is_given, "reducer: ", each.option, " with preset ", preset, ", ", each.reason);
}

void check_auto(const ReducerOptions& options) {
  const AllreduceOptions defaults;
  constexpr std::string_view kHint =
      "which chooses the coding itself: name a preset, or say the coarsest value coding that it may take "
      "(coarsest = fp32 for a lossless one)";
  refuse("auto", {{options.allreduce.codec != defaults.codec, "codec", kHint},
                  {options.allreduce.skips != defaults.skips, "skips", "which chooses them itself: name a preset"}});
}

// The intervals and thresholds of oktopk are no part of it: sweeps over presets set them once for all.
void check_named(const ReducerOptions& options) {
  constexpr std::string_view kAuto = "but only auto uses it";
  const ChoiceOptions& choice = options.choice;
  const bool has_skips = options.preset != "circulant" && options.allreduce.skips != AllreduceOptions{}.skips;
  refuse(options.preset, {{options.profile.has_value(), "profile", kAuto},
                          {!choice.presets.empty(), "choice.presets", kAuto},
                          {!choice.overrides.empty(), "choice.overrides", kAuto},
                          {choice.coarsest != ChoiceOptions{}.coarsest, "choice.coarsest", kAuto},
                          {!choice.review, "choice.review", kAuto},
                          {has_skips, "skips", "but only circulant uses them"}});
}

void check(const ReducerOptions& options) {
  check_schedule(options.warmup);
  require(options.decay > 0 && options.decay <= 1, "reducer: decay = ", options.decay, ", but it must be in (0, 1]");
  require(options.divisor >= 0, "reducer: divisor = ", options.divisor, ", but it must be positive");
  require(options.adaptive.target_share == 0 || options.preset != "dense",
          "reducer: an adaptive density with preset dense, which sends everything");
}

void describe_auto(const ReducerOptions& options, std::ostream& text) {
  check_auto(options);
  text << "preset auto, coarsest value coding "
       << value_codings()[static_cast<std::size_t>(options.choice.coarsest)].name << ", residual "
       << to_string(options.allreduce.residual) << ", selector "
       << (options.selector.empty() ? "default" : options.selector) << ", profile ";
  if (options.profile) {
    StateWriter prices;
    save(*options.profile, prices);
    text << hash_bytes(prices.seal());
  } else {
    text << "measured";
  }
  text << ", overrides " << to_string(options.choice.overrides) << ", preference " << options.choice.preference;
  for (const std::string& preset : options.choice.presets) text << ", " << preset;
  if (!options.choice.review) text << ", no review";
}

// Returns the options as the algorithm resolves them.
AllreduceOptions describe_named(const ReducerOptions& options, std::ostream& text) {
  check_named(options);
  const Preset& preset = find_preset(options.preset);
  AllreduceOptions o = make_allreduce(preset, options.allreduce)->options();
  text << "preset " << preset.name << ", selector "
       << make_selector(selector_of(options, preset, o), selector_options(o, 1))->name() << ", codec "
       << to_string(o.codec) << ", skips " << o.skips << ", residual " << to_string(o.residual);
  return o;
}

}  // namespace

std::string_view to_string(NanPolicy policy) { return kNanPolicies[policy]; }

NanPolicy find_nan_policy(std::string_view name) { return kNanPolicies.find(name); }

std::size_t entries_per_step(Index n, const ReducerOptions& options) {
  if (options.k == 0) {
    require(options.density > 0 && options.density <= 1, "reducer: density = ", options.density,
            ", but it must be in (0, 1]");
    return entries_at(options.density, n);
  }
  require(options.k <= n, "reducer: k = ", options.k, ", but k must be in 1..n with n = ", n);
  return options.k;
}

std::string describe(const ReducerOptions& options, Index n) {
  check(options);
  std::ostringstream text;
  AllreduceOptions o = options.allreduce;
  if (options.preset == "auto")
    describe_auto(options, text);
  else
    o = describe_named(options, text);
  text << ", k " << digits(entries_per_step(n, options)) << ", tau " << digits(o.tau) << ", thresholds "
       << to_string(o.thresholds) << ", tau' " << digits(o.tau_prime) << ", bucket " << digits(o.bucket)
       << ", balance trigger " << digits(o.balance_trigger) << ", dense schedule " << digits(static_cast<int>(o.dense))
       << ", decay " << digits(options.decay) << ", NaN policy " << to_string(options.nan_policy) << ", warm-up";
  for (const DensityStage& stage : options.warmup) text << ' ' << digits(stage.steps) << " x " << digits(stage.density);
  if (options.divisor > 0) text << ", divisor " << digits(options.divisor);
  text << describe(options.adaptive);
  return text.str();
}

Index checked_size(std::string_view whose, std::uint64_t n) {
  require(n <= std::numeric_limits<Index>::max(), whose, ": n = ", n,
          ", but n must be at most 2^32 - 1: divide the gradient over several Reducers");
  return static_cast<Index>(n);
}

std::shared_ptr<const Device> device_of(const ReducerOptions& options) {
  return options.device ? options.device : make_cpu_device(options.cpu);
}

std::unique_ptr<Communicator> trace_messages(Communicator& comm, const ReducerOptions& options) {
  if (!options.trace || !options.trace_messages) return nullptr;
  return std::make_unique<TracingCommunicator>(comm, options.trace);
}

Tuner make_tuner(const ReducerOptions& options, Index n, int P, const Profile& profile) {
  const auto k = static_cast<double>(entries_per_step(n, options));
  ChoiceOptions choice = options.choice;
  choice.allreduce = options.allreduce;
  choice.groups = false;  // NodeReducer forms the groups
  return {{.n = static_cast<double>(n), .k = k, .P = P}, profile, choice};
}

AllreduceOptions options_of(const Method& method, const ReducerOptions& options) {
  return method.options(fitting(find_preset(method.preset), options.allreduce));
}

Prediction with_agreement(Prediction prediction, const ReducerOptions& options, int P, int sharers) {
  if (options.adaptive.target_share > 0) {
    prediction.expected += share_cost(sharers, options.adaptive.interval);
    prediction.bound += share_cost(sharers, 1);
  }
  if (options.nan_policy == NanPolicy::local) return prediction;
  prediction.expected += notes_cost(P);
  prediction.bound += notes_cost(P);
  return prediction;
}

}  // namespace oktopk
