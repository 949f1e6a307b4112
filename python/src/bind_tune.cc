// SPDX-License-Identifier: Apache-2.0
// The tuner: profiles of a network, and what it would choose.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/codec/codec.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/candidates.h"
#include "python/src/gil.h"
#include "python/src/module.h"
#include "python/src/options.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace oktopk::python {
namespace {

Profile measure(Communicator& comm, double budget, int ranks_per_host, std::optional<std::uint64_t> n) {
  require(budget > 0, "calibrate: budget = ", budget, " s, but it must be positive");
  CalibrateOptions options{.budget = budget, .ranks_per_host = ranks_per_host};
  if (n) options.most_bytes = most_measured(static_cast<double>(*n), comm.size());
  return calibrate(comm, options);
}

nb::bytes profile_bytes(const Profile& profile) {
  StateWriter state;
  save(profile, state);
  const Bytes bytes = state.seal();
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void profile_from_bytes(Profile& self, const nb::bytes& bytes) {
  StateReader state({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
  new (&self) Profile(take_profile(state));
}

using ExternalSeconds = std::optional<std::pair<double, double>>;

ExternalSeconds external_dense(const Profile& profile) {
  if (!profile.external_dense) return std::nullopt;
  return std::pair(profile.external_dense->latency, profile.external_dense->per_byte);
}

void set_external_dense(Profile& profile, const ExternalSeconds& price) {
  profile.external_dense.reset();
  if (!price) return;
  require(price->first >= 0 && price->second >= 0, "profile: external_dense = (", price->first, ", ", price->second,
          "), but neither may be negative");
  profile.external_dense = {.latency = price->first, .per_byte = price->second};
}

std::vector<Candidate> explain(std::uint64_t n, double density, int P, const Profile& profile,
                               const std::string& coarsest, const std::string& overrides) {
  require(n >= 1 && n < (std::uint64_t{1} << 32), "explain: n = ", n, ", but it must be in 1..2^32-1");
  require(density > 0 && density <= 1, "explain: density = ", density, ", but it must be in (0, 1]");
  require(P >= 1, "explain: P = ", P, ", but it must be at least 1");
  ChoiceOptions options;
  options.coarsest = find_value_coding(coarsest);
  options.overrides = Overrides::parse(overrides);
  options.external_dense = profile.external_dense.has_value();
  const auto entries = entries_at(density, static_cast<Index>(n));
  return rank_candidates({.n = static_cast<double>(n), .k = static_cast<double>(entries), .P = P}, profile, options);
}

}  // namespace

void bind_tune(nb::module_& m) {
  nb::class_<Machine>(m, "Machine", "What the network and the processor charge, in seconds.")
      .def(nb::init<>())
      .def_rw("alpha", &Machine::alpha, "per round: a message's latency")
      .def_rw("beta", &Machine::beta, "per byte and direction")
      .def_rw("gamma", &Machine::gamma, "per sparse entry that is merged")
      .def_rw("overhead", &Machine::overhead, "per message: the processor's share")
      .def_rw("contention", &Machine::contention, "beta's factor while everyone talks to everyone")
      .def_rw("delta", &Machine::delta, "per dense value")
      .def_rw("sigma", &Machine::sigma, "per gradient value that is selected from");

  nb::class_<Profile>(m, "Profile", "What a tuner knows of the network; equal on all ranks.")
      .def(nb::init<>())
      .def_rw("name", &Profile::name)
      .def_rw("machine", &Profile::machine)
      .def_rw("ranks_per_host", &Profile::ranks_per_host)
      .def_prop_rw("external_dense", &external_dense, &set_external_dense, nb::for_setter(nb::arg("price").none()),
                   "(seconds, seconds per byte) of a dense all_reduce that the caller makes "
                   "himself, such as a process group's; None: not measured.")
      .def("__getstate__", &profile_bytes)
      .def("__setstate__", &profile_from_bytes);

  nb::class_<Candidate>(m, "Candidate", "A way to solve a problem, priced.")
      .def_prop_ro("method", [](const Candidate& c) { return to_string(c.method); })
      .def_prop_ro("preset", [](const Candidate& c) { return c.method.preset; })
      .def_prop_ro("codec", [](const Candidate& c) { return to_string(c.method.codec); })
      .def_prop_ro("skips", [](const Candidate& c) { return c.method.skips; })
      .def_ro("seconds", &Candidate::seconds, "of a step, all together")
      .def_ro("compute", &Candidate::compute, "of these, over the n values on this rank")
      .def_prop_ro("bytes", [](const Candidate& c) { return c.cost.bytes; })
      .def_prop_ro("messages", [](const Candidate& c) { return c.cost.messages; })
      .def_ro("overridden", &Candidate::overridden)
      .def_ro("external", &Candidate::external, "the all_reduce of the process group")
      .def("__repr__", [](const Candidate& c) {
        return "<" + to_string(c.method) + (c.external ? " by the process group" : "") + ": " +
               std::to_string(1e3 * c.seconds) + " ms>";
      });

  m.def("calibrate", &measure, "comm"_a, "budget"_a = 0.15, "ranks_per_host"_a = 1, "n"_a = nb::none(),
        nb::call_guard<WithoutGil>(),
        "Collective: measures the network and the processor in about `budget` seconds. ranks_per_host > 1: also the "
        "network between the first ranks of the hosts, for group_size. n: for steps of so many values, with as many "
        "bytes as 4 dense steps of them at most.");
  m.def("explain", &explain, "n"_a, "density"_a, "ranks"_a, "profile"_a, "coarsest"_a = "bf16", "overrides"_a = "",
        "What preset \"auto\" would choose for n values at a density, and all that it compares, "
        "the choice first.");
  m.def(
      "presets",
      [] {
        nb::list names;
        for (const Preset& preset : presets()) names.append(nb::make_tuple(preset.name, preset.summary));
        return names;
      },
      "(name, summary) of every preset.");
  m.def("check_options", &check_options, "options"_a,
        "The options in words; UsageError where one is unfit. k is not compared with any n.");
  m.def(
      "recipe",
      [](std::uint64_t total_steps) {
        const ReducerOptions options = recipe(total_steps);
        nb::list stages;
        for (const DensityStage& stage : options.warmup) stages.append(nb::make_tuple(stage.steps, stage.density));
        nb::dict named;
        named["preset"] = options.preset;
        named["density"] = options.density.value();
        named["codec"] = to_string(options.allreduce.codec.value());
        named["warmup"] = stages;
        return named;
      },
      "total_steps"_a, "The options of the recipe for a run of so many steps (docs/learning.md).");
  m.def("option_names", &option_names, "The names of all options of a Reducer.");
}

}  // namespace oktopk::python
