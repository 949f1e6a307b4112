// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/profile.h"

#include <algorithm>
#include <span>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

void put(StateWriter& state, const Machine& m) {
  for (const double price : {m.alpha, m.beta, m.gamma, m.overhead, m.contention, m.delta, m.sigma})
    state.put(price);
}

Machine take_machine(StateReader& state) {
  Machine m;
  for (double* price :
       {&m.alpha, &m.beta, &m.gamma, &m.overhead, &m.contention, &m.delta, &m.sigma})
    *price = state.take_finite<double>("a price of the profile", 0);
  return m;
}

void take_prices(StateReader& state, std::span<double> prices) {
  const auto saved = state.take_all_finite<double>("price of a coding", 0);
  require(saved.size() == prices.size(), "state: prices of ", saved.size(),
          " codings, but there are ", prices.size());
  std::copy(saved.begin(), saved.end(), prices.begin());
}

}  // namespace

void save(const Profile& profile, StateWriter& state) {
  put(state, profile.machine);
  for (const std::optional<Machine>& some : {profile.inside, profile.leaders}) {
    state.put(some.has_value());
    put(state, some.value_or(Machine{}));
  }
  state.put(static_cast<std::uint32_t>(profile.ranks_per_host));
  state.put_all(std::span<const double>(profile.index_seconds));
  state.put_all(std::span<const double>(profile.value_seconds));
  state.put_text(profile.name);
}

Profile take_profile(StateReader& state) {
  Profile profile;
  profile.machine = take_machine(state);
  for (std::optional<Machine>* some : {&profile.inside, &profile.leaders}) {
    const bool is_there = state.take<bool>();
    const Machine machine = take_machine(state);
    if (is_there) *some = machine;
  }
  profile.ranks_per_host = static_cast<int>(state.take<std::uint32_t>());
  take_prices(state, profile.index_seconds);
  take_prices(state, profile.value_seconds);
  profile.name = state.take_text();
  return profile;
}

}  // namespace oktopk
