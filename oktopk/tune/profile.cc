// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/profile.h"

#include <algorithm>
#include <span>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {
namespace {

void put(StateWriter& state, const Machine& m) {
  for (const double price : {m.alpha, m.beta, m.gamma, m.overhead, m.contention, m.delta, m.sigma}) state.put(price);
}

Machine take_machine(StateReader& state) {
  Machine m;
  for (double* price : {&m.alpha, &m.beta, &m.gamma, &m.overhead, &m.contention, &m.delta, &m.sigma})
    *price = state.take_finite<double>("a price of the profile", 0);
  return m;
}

// A flag in the word with the ranks per host: the prices of an external dense follow at the end. Older states lack it.
constexpr std::uint32_t kHasExternal = std::uint32_t{1} << 31;

void take_prices(StateReader& state, std::span<double> prices) {
  const auto saved = state.take_all_finite<double>("price of a coding", 0);
  require(saved.size() == prices.size(), "state: prices of ", saved.size(), " codings, but there are ", prices.size());
  std::copy(saved.begin(), saved.end(), prices.begin());
}

}  // namespace

void save(const Profile& profile, StateWriter& state) {
  put(state, profile.machine);
  for (const std::optional<Machine>& some : {profile.inside, profile.leaders}) {
    state.put(some.has_value());
    put(state, some.value_or(Machine{}));
  }
  state.put(static_cast<std::uint32_t>(profile.ranks_per_host) | (profile.external_dense ? kHasExternal : 0));
  state.put_all(std::span<const double>(profile.index_seconds));
  state.put_all(std::span<const double>(profile.value_seconds));
  state.put_text(profile.name);
  if (!profile.external_dense) return;
  state.put(profile.external_dense->latency);
  state.put(profile.external_dense->per_byte);
}

Profile take_profile(StateReader& state) {
  Profile profile;
  profile.machine = take_machine(state);
  for (std::optional<Machine>* some : {&profile.inside, &profile.leaders}) {
    const bool is_there = state.take<bool>();
    const Machine machine = take_machine(state);
    if (is_there) *some = machine;
  }
  const auto ranks = state.take<std::uint32_t>();
  profile.ranks_per_host = static_cast<int>(ranks & ~kHasExternal);
  take_prices(state, profile.index_seconds);
  take_prices(state, profile.value_seconds);
  profile.name = state.take_text();
  if ((ranks & kHasExternal) == 0) return profile;
  ExternalPrice& external = profile.external_dense.emplace();
  external.latency = state.take_finite<double>("the latency of an external dense", 0);
  external.per_byte = state.take_finite<double>("the price of an external dense", 0);
  return profile;
}

}  // namespace oktopk
