// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_options.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <sstream>
#include <tuple>

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

template <class T>
bool differ(const T& a, const T& b) {
  return a != b;
}
bool differ(const std::optional<Profile>& a, const std::optional<Profile>& b) { return a.has_value() != b.has_value(); }

// " = value" where a value has words.
template <class T>
std::string value_text(const T& x) {
  std::ostringstream text;
  if constexpr (requires { x.has_value(); })
    return x ? value_text(*x) : "";
  else if constexpr (std::same_as<T, std::shared_ptr<GpuExchange>>)
    return "";
  else if constexpr (std::same_as<T, ValueCoding>)
    text << " = " << value_codings()[static_cast<std::size_t>(x)].name;
  else if constexpr (requires { to_string(x); })
    text << " = " << to_string(x);
  else if constexpr (requires { text << x; })
    text << " = " << x;
  return text.str();
}

template <class Options, class T>
auto& member(Options& o, T ReducerOptions::*which) {
  return o.*which;
}
template <class Options, class T>
auto& member(Options& o, T AllreduceOptions::*which) {
  return o.allreduce.*which;
}
template <class Options, class T>
auto& member(Options& o, T ChoiceOptions::*which) {
  return o.choice.*which;
}

bool is_auto(const ReducerOptions& o) { return o.preset == "auto"; }
bool is_named(const ReducerOptions& o) { return !is_auto(o); }
bool is_dense(const ReducerOptions& o) { return o.preset == "dense"; }
bool is_slots(const ReducerOptions& o) { return o.preset == "slots"; }
bool is_reused(const ReducerOptions& o) { return o.selector == "reused"; }
bool lacks_slots(const ReducerOptions& o) { return is_named(o) && !is_slots(o); }
bool lacks_circulant(const ReducerOptions& o) { return is_named(o) && o.preset != "circulant"; }
bool lacks_oktopk(const ReducerOptions& o) { return is_named(o) && o.preset != "oktopk"; }
bool lacks_reused(const ReducerOptions& o) { return lacks_oktopk(o) && !is_reused(o); }
bool is_dense_and_reused(const ReducerOptions& o) { return is_dense(o) && is_reused(o); }

// An option that is ignored where `applies` says so.
template <class Member>
struct Ignored {
  std::string_view name;
  Member member;
  bool (*applies)(const ReducerOptions&);
  std::string_view reason;
};
template <class Member>
Ignored(std::string_view, Member, bool (*)(const ReducerOptions&), std::string_view) -> Ignored<Member>;

constexpr std::string_view kAuto = "but only auto uses it";
constexpr std::string_view kOkTopk = "but only oktopk uses it";
constexpr std::string_view kReused = "but only oktopk and the selector reused use it";
constexpr std::string_view kAll = "which sends all values in every step";

// The first row that applies is the one that an error names.
constexpr auto kIgnored = std::tuple{
    Ignored{"choice.allreduce", &ChoiceOptions::allreduce, [](const ReducerOptions&) { return true; },
            "but options.allreduce counts"},
    Ignored{"choice.groups", &ChoiceOptions::groups, [](const ReducerOptions&) { return true; },
            "but only NodeReducer forms groups"},
    Ignored{"density", &ReducerOptions::density, [](const ReducerOptions& o) { return o.k > 0; },
            "but k is given, too: give one of them"},
    Ignored{"codec", &AllreduceOptions::codec, is_auto,
            "which chooses the coding itself: name a preset, or set coarsest (in C++ choice.coarsest), the coarsest "
            "value coding that it may take (fp32: lossless)"},
    Ignored{"skips", &AllreduceOptions::skips, is_auto, "which chooses them itself: name a preset"},
    Ignored{"profile", &ReducerOptions::profile, is_named, kAuto},
    Ignored{"choice.presets", &ChoiceOptions::presets, is_named, kAuto},
    Ignored{"choice.overrides", &ChoiceOptions::overrides, is_named, kAuto},
    Ignored{"choice.coarsest", &ChoiceOptions::coarsest, is_named, kAuto},
    Ignored{"choice.preference", &ChoiceOptions::preference, is_named, kAuto},
    Ignored{"choice.review", &ChoiceOptions::review, is_named, kAuto},
    Ignored{"exchange", &ReducerOptions::exchange, lacks_slots, "but only slots makes steps on the GPU"},
    Ignored{"adaptive", &ReducerOptions::adaptive,
            [](const ReducerOptions& o) { return is_slots(o) && o.exchange != nullptr; },
            "but steps on the GPU do not know the share"},
    Ignored{"codec", &AllreduceOptions::codec, is_slots,
            "whose entries have a coding of their own: 12 bits of place, 20 of value"},
    Ignored{"skips", &AllreduceOptions::skips, lacks_circulant, "but only circulant uses them"},
    Ignored{"tau", &AllreduceOptions::tau, lacks_oktopk, kOkTopk},
    Ignored{"bucket", &AllreduceOptions::bucket, lacks_oktopk, kOkTopk},
    Ignored{"balance_trigger", &AllreduceOptions::balance_trigger, lacks_oktopk, kOkTopk},
    Ignored{"tau_prime", &AllreduceOptions::tau_prime, lacks_reused, kReused},
    Ignored{"thresholds", &AllreduceOptions::thresholds, lacks_reused, kReused},
    Ignored{"density", &ReducerOptions::density, is_dense, kAll},
    Ignored{"warmup", &ReducerOptions::warmup, is_dense, kAll},
    Ignored{"adaptive", &ReducerOptions::adaptive, is_dense, kAll},
    Ignored{"selector", &ReducerOptions::selector, is_dense, kAll},
    Ignored{"tau_prime", &AllreduceOptions::tau_prime, is_dense_and_reused, kAll},
    Ignored{"thresholds", &AllreduceOptions::thresholds, is_dense_and_reused, kAll},
    Ignored{"decay", &ReducerOptions::decay, is_dense, kAll},
};

// Visits every option that the preset ignores: visit(name, member, value, reason), where `value` is the one that the
// member has when nobody asked for another.
template <class Visit>
void for_each_ignored(const ReducerOptions& o, const Visit& visit) {
  const ReducerOptions standard;
  const ReducerOptions asked = o;  // a visit may change o
  const auto visit_row = [&](const auto& row) {
    if (row.applies(asked)) visit(row.name, row.member, member(standard, row.member), row.reason);
  };
  std::apply([&](const auto&... row) { (visit_row(row), ...); }, kIgnored);
  if (!is_dense(asked) || !asked.allreduce.codec) return;
  const Codec used{IndexCoding::coo32, asked.allreduce.codec->lossless() ? ValueCoding::fp32 : ValueCoding::bf16};
  visit("codec", &AllreduceOptions::codec, std::optional(used), "which sends values without indices, in fp32 or bf16");
}

void check(const ReducerOptions& options) {
  check_schedule(options.warmup);
  require(options.decay > 0 && options.decay <= 1, "reducer: decay = ", options.decay, ", but it must be in (0, 1]");
  require(!options.checked || options.check_every > 0,
          "reducer: checked without check_every, which says after how many steps the bytes are compared");
}

// The error also names auto.
const Preset& named_preset(std::string_view name) {
  try {
    return find_preset(name);
  } catch (const UsageError& error) {
    fail<UsageError>(error.what(), ", auto");
  }
}

void describe_auto(const ReducerOptions& options, std::ostream& text) {
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
  const Preset& preset = named_preset(options.preset);
  const auto allreduce = make_allreduce(preset, options.allreduce);
  AllreduceOptions o = allreduce->options();
  text << "preset " << preset.name << ", selector "
       << make_selector(selector_of(options, preset, o), selector_options(o, 1))->name() << ", codec "
       << allreduce->coding() << ", skips " << o.skips << ", residual " << to_string(o.residual);
  return o;
}

}  // namespace

std::string_view to_string(NanPolicy policy) { return kNanPolicies[policy]; }

NanPolicy find_nan_policy(std::string_view name) { return kNanPolicies.find(name); }

ReducerOptions recipe(std::uint64_t total_steps) {
  require(total_steps > 0, "recipe: total_steps = 0, but it must be at least 1");
  const Codec codec{IndexCoding::elias_fano, ValueCoding::log4};
  return {.preset = "circulant",
          .density = 0.025,
          .allreduce = {.codec = codec},
          .warmup = {{.steps = std::max<std::uint64_t>(1, (total_steps + 5) / 10), .density = 0.9}}};
}

std::size_t entries_per_step(Index n, const ReducerOptions& options) {
  if (options.k == 0) {
    const double density = options.density.value_or(kDefaultDensity);
    require(density > 0 && density <= 1, "reducer: density = ", density, ", but it must be in (0, 1]");
    return entries_at(density, n);
  }
  require(options.k <= n, "reducer: k = ", options.k, ", but k must be in 1..n with n = ", n);
  return options.k;
}

void check_used(const ReducerOptions& options) {
  for_each_ignored(options, [&](std::string_view name, auto which, const auto& value, std::string_view reason) {
    const auto& given = member(options, which);
    require(!differ(given, value), "reducer: ", name, value_text(given), " with preset ", options.preset, ", ", reason);
  });
}

ReducerOptions only_used(ReducerOptions options) {
  for_each_ignored(options, [&](std::string_view, auto which, const auto& value, std::string_view) {
    member(options, which) = value;
  });
  return options;
}

std::string describe(const ReducerOptions& options, Index n, int divisor) {
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
       << ", decay " << digits(options.decay) << ", NaN policy " << to_string(options.nan_policy)
       << describe(options.warmup);
  if (divisor > 0) text << ", divisor " << digits(divisor);
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
  const Prediction notes = notes_cost(P, options);
  prediction.expected += notes.expected;
  prediction.bound += notes.bound;
  return prediction;
}

}  // namespace oktopk
