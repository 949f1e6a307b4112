// SPDX-License-Identifier: Apache-2.0
#include "python/src/options.h"
#include "python/src/gil.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/codec/codec.h"
#include "oktopk/reduce/reducer_options.h"

namespace nb = nanobind;

namespace oktopk::python {
namespace {

std::string text(nb::handle x) { return nb::cast<std::string>(x); }

// True is 1 for Python, and never what a caller means here.
void refuse_bool(nb::handle x) {
  if (nb::isinstance<nb::bool_>(x)) throw nb::cast_error();
}

double real(nb::handle x, const char* name) {
  refuse_bool(x);
  const auto number = nb::cast<double>(x);
  require(std::isfinite(number), "reducer: ", name, " = ", number, ", but it must be finite");
  return number;
}

std::size_t positive(nb::handle x, const char* name) {
  refuse_bool(x);
  const auto number = nb::cast<long long>(x);
  require(number > 0, "reducer: ", name, " = ", number, ", but it must be positive");
  return static_cast<std::size_t>(number);
}

DensitySchedule stages(nb::handle x) {
  DensitySchedule schedule;
  for (const auto& [steps, density] : nb::cast<std::vector<std::pair<std::uint64_t, double>>>(x)) {
    schedule.push_back({steps, density});
  }
  return schedule;
}

// "host": 0, the ranks of a host; g: g consecutive ranks.
int group_size(nb::handle x) {
  constexpr auto kRule = ", but it must be \"host\" or a number of ranks, at least 1";
  if (nb::isinstance<nb::str>(x)) {
    require(text(x) == "host", "reducer: group_size = '", text(x), "'", kRule);
    return 0;
  }
  refuse_bool(x);
  const auto ranks = nb::cast<int>(x);
  require(ranks >= 1, "reducer: group_size = ", ranks, kRule);
  return ranks;
}

// A function of the caller and its last result, which are let go of with the GIL, whichever thread does it.
struct CheckedWeights {
  using Weights = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  nb::callable ask;
  Weights last = {};

  static std::function<std::span<const std::byte>()> of(nb::handle x) {
    if (!PyCallable_Check(x.ptr())) throw nb::cast_error();
    const std::shared_ptr<CheckedWeights> kept(new CheckedWeights{nb::borrow<nb::callable>(x)},
                                               [](CheckedWeights* all) {
                                                 try {
                                                   const WithGil gil;
                                                   delete all;
                                                 } catch (const CommError&) {
                                                   // The interpreter is ending.
                                                 }
                                               });
    return [kept] {
      const WithGil gil;
      const nb::object given = kept->ask();
      require(nb::try_cast(given, kept->last), "reducer: checked() gave ",
              nb::cast<std::string>(nb::repr(given.type())), ", but it must give a flat float32 array in host memory");
      return std::as_bytes(std::span<const float>(kept->last.data(), kept->last.size()));
    };
  }
};

struct Keyword {
  std::string_view name;
  void (*read)(ReducerOptions& o, nb::handle x);
};

constexpr auto kKeywords = std::to_array<Keyword>({
    {"preset", [](ReducerOptions& o, nb::handle x) { o.preset = text(x); }},
    {"density", [](ReducerOptions& o, nb::handle x) { o.density = real(x, "density"); }},
    {"k", [](ReducerOptions& o, nb::handle x) { o.k = positive(x, "k"); }},
    {"codec", [](ReducerOptions& o, nb::handle x) { o.allreduce.codec = parse_codec(text(x)); }},
    {"skips", [](ReducerOptions& o, nb::handle x) { o.allreduce.skips = text(x); }},
    {"residual", [](ReducerOptions& o, nb::handle x) { o.allreduce.residual = find_residual(text(x)); }},
    {"selector", [](ReducerOptions& o, nb::handle x) { o.selector = text(x); }},
    {"tau", [](ReducerOptions& o, nb::handle x) { o.allreduce.tau = static_cast<int>(positive(x, "tau")); }},
    {"tau_prime",
     [](ReducerOptions& o, nb::handle x) { o.allreduce.tau_prime = static_cast<int>(positive(x, "tau_prime")); }},
    {"thresholds", [](ReducerOptions& o, nb::handle x) { o.allreduce.thresholds = find_threshold_rule(text(x)); }},
    {"threads", [](ReducerOptions& o, nb::handle x) { o.cpu.threads = static_cast<int>(positive(x, "threads")); }},
    {"warmup", [](ReducerOptions& o, nb::handle x) { o.warmup = stages(x); }},
    {"adaptive_share", [](ReducerOptions& o, nb::handle x) { o.adaptive.target_share = real(x, "adaptive_share"); }},
    {"adaptive_budget", [](ReducerOptions& o, nb::handle x) { o.adaptive.budget = real(x, "adaptive_budget"); }},
    {"adaptive_least", [](ReducerOptions& o, nb::handle x) { o.adaptive.least = real(x, "adaptive_least"); }},
    {"adaptive_most", [](ReducerOptions& o, nb::handle x) { o.adaptive.most = real(x, "adaptive_most"); }},
    {"adaptive_interval",
     [](ReducerOptions& o, nb::handle x) { o.adaptive.interval = static_cast<int>(positive(x, "adaptive_interval")); }},
    {"decay", [](ReducerOptions& o, nb::handle x) { o.decay = static_cast<float>(real(x, "decay")); }},
    {"nan_policy", [](ReducerOptions& o, nb::handle x) { o.nan_policy = find_nan_policy(text(x)); }},
    {"check_every", [](ReducerOptions& o, nb::handle x) { o.check_every = positive(x, "check_every"); }},
    {"checked", [](ReducerOptions& o, nb::handle x) { o.checked = CheckedWeights::of(x); }},
    {"coarsest", [](ReducerOptions& o, nb::handle x) { o.choice.coarsest = find_value_coding(text(x)); }},
    {"review", [](ReducerOptions& o, nb::handle x) { o.choice.review = nb::cast<bool>(x); }},
    {"overrides", [](ReducerOptions& o, nb::handle x) { o.choice.overrides = Overrides::parse(text(x)); }},
    {"trace", [](ReducerOptions& o, nb::handle x) { o.trace = nb::cast<Trace*>(x); }},
    {"group_size", [](ReducerOptions&, nb::handle x) { group_size(x); }},  // see read_group_size()
    {"profile", [](ReducerOptions& o, nb::handle x) { o.profile = nb::cast<Profile>(x); }},
});

void check_density(ReducerOptions& options) {
  require(options.k == 0 || !options.density, "reducer: k = ", options.k,
          " and density = ", options.density.value_or(0),
          ", but only one of them says how many entries a step sends: give one");
  if (options.k > 0 || options.preset == "dense") return options.density.reset();
  const double density = options.density.value_or(kDefaultDensity);
  require(density > 0 && density < 1, "reducer: density = ", density,
          ", but it is the share of the values that a step sends, above 0 and below 1: 0.01 is 1%; "
          "preset=\"dense\" sends all");
}

bool has(const nb::dict& keywords, const char* name) { return keywords.contains(name) && !keywords[name].is_none(); }

void check_interval(const nb::dict& keywords, const ReducerOptions& options) {
  require(!has(keywords, "adaptive_interval") || has(keywords, "adaptive_share"),
          "reducer: adaptive_interval = ", options.adaptive.interval,
          " without adaptive_share, the target: give a target, or leave the interval out");
}

}  // namespace

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const Keyword& keyword : kKeywords) names.emplace_back(keyword.name);
  return names;
}

std::string check_options(const nb::dict& keywords) {
  const ReducerOptions options = read_options(keywords);
  const std::string words = describe(options, std::numeric_limits<Index>::max());
  check_used(options);
  const std::optional<int> group = read_group_size(keywords);
  if (!group) return words;
  return words + ", group_size " + (*group == 0 ? "host" : std::to_string(*group));
}

std::optional<int> read_group_size(const nb::dict& keywords) {
  if (!has(keywords, "group_size")) return std::nullopt;
  return group_size(keywords["group_size"]);
}

ReducerOptions read_options(const nb::dict& keywords) {
  ReducerOptions options;
  for (const auto& [key, x] : keywords) {
    const auto name = nb::cast<std::string>(key);
    const Keyword& keyword = find_row(kKeywords, "option", name);
    if (x.is_none()) continue;  // its default
    try {
      keyword.read(options, x);
    } catch (const nb::cast_error&) {
      fail<UsageError>("reducer: ", name, " = ", nb::cast<std::string>(nb::repr(x)),
                       " is of the wrong type: help(oktopk.Reducer) has the types");
    }
  }
  check_density(options);
  check_interval(keywords, options);
  return options;
}

Index checked_n(std::uint64_t n) {
  require(n >= 1 && n < (std::uint64_t{1} << 32), "reducer: n = ", n, ", but it must be in 1..2^32-1");
  return static_cast<Index>(n);
}

}  // namespace oktopk::python
