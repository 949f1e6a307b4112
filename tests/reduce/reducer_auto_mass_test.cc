// SPDX-License-Identifier: Apache-2.0
// Preset auto takes no preset with a residual rule that loses mass, whatever rule the caller names:
// what the ranks brought is what was applied and what is unsent, bit by bit on dyadic inputs.
#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/world.h"

namespace oktopk::reducer_auto_mass_test {
namespace {

struct Ledger {
  std::string preset;
  ResidualKind rule;
  double lost = 0;  // the sum over the indices of |brought - applied - unsent|
};

void subtract_applied(std::vector<double>& balance, const Outcome& applied) {
  for (std::size_t j = 0; j < applied.update.size(); ++j) balance[applied.update.idx[j]] -= applied.update.val[j];
  for (std::size_t i = 0; i < applied.dense_update.size(); ++i) balance[i] -= applied.dense_update[i];
}

void subtract_unsent(std::vector<double>& balance, const Reducer& reducer) {
  for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= state_of(reducer).unsent.values()[i];
  const OwnerMemory memory = state_of(reducer).unsent.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i)
    if (memory.values[i] != 0) balance[memory.index(i)] -= memory.values[i];
}

// Ranks that share 40 large indices, in another order each: a tree prunes many partial sums whose
// index survives in another branch. Dyadic.
std::vector<float> hot_gradient(Index n, int rank, int step) {
  std::vector<float> gradient(n, 0.0F);
  for (int i = 0; i < 40; ++i)
    gradient[static_cast<std::size_t>(i)] = static_cast<float>((rank * 7 + i * 13 + step * 5) % 16 + 1) / 16;
  return gradient;
}

Ledger keep_ledger(int P, Index n, const ReducerOptions& options, int steps) {
  Ledger ledger;
  const auto balances = gather_world("threads", P, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    std::vector<double> balance(n, 0.0);
    for (int step = 0; step < steps; ++step) {
      const auto gradient = hot_gradient(n, comm.rank(), step);
      for (std::size_t i = 0; i < n; ++i) balance[i] += gradient[i];
      reducer.step(gradient);
      if (comm.rank() == 0) subtract_applied(balance, state_of(reducer).outcome);
    }
    subtract_unsent(balance, reducer);
    if (comm.rank() == 0) {
      ledger.preset = state_of(reducer).allreduce->name();
      ledger.rule = state_of(reducer).allreduce->options().residual;
    }
    return balance;
  });
  for (std::size_t i = 0; i < n; ++i) {
    double left = 0;
    for (const auto& balance : balances) left += balance[i];
    ledger.lost += std::abs(left);
  }
  return ledger;
}

// gtopk is the fastest of those that auto may take.
ReducerOptions where_gtopk_wins() {
  ReducerOptions options;
  options.k = 10;
  options.profile = Profile{};
  options.profile->machine = {.alpha = 1e-6, .beta = 8e-9};
  options.choice.presets = {"dense", "gtopk", "topkdsa"};
  options.allreduce.residual = ResidualKind::sender_keeps;
  return options;
}

TEST(ReducerAutoMass, choice_of_gtopk_by_sender_keeps_loses_nothing) {
  const Ledger ledger = keep_ledger(32, 10000, where_gtopk_wins(), 4);
  EXPECT_EQ(ledger.preset, "gtopk");
  EXPECT_EQ(ledger.rule, ResidualKind::holder_keeps);
  EXPECT_EQ(ledger.lost, 0);
}

// The law sees the loss where the caller names both: he gets what he asks for.
TEST(ReducerAutoMass, gtopk_by_name_keeps_the_rule_that_was_asked_for) {
  ReducerOptions options = where_gtopk_wins();
  options.preset = "gtopk";
  options.profile.reset();
  options.choice = {};
  const Ledger ledger = keep_ledger(5, 2000, options, 4);
  EXPECT_EQ(ledger.rule, ResidualKind::sender_keeps);
  EXPECT_GT(ledger.lost, 0);
}

TEST(ReducerAutoMass, choice_of_any_preset_by_any_rule_loses_nothing) {
  for (const Preset& preset : presets())
    for (const ResidualKind rule : {ResidualKind::none, ResidualKind::sender_keeps, ResidualKind::all_sent_cleared,
                                    ResidualKind::holder_keeps, ResidualKind::owner_memory}) {
      ReducerOptions options = where_gtopk_wins();
      options.allreduce.residual = rule;
      options.choice.coarsest = ValueCoding::fp32;
      options.choice.overrides = Overrides::parse(preset.name);
      const Ledger ledger = keep_ledger(5, 1000, options, 4);
      EXPECT_EQ(ledger.preset, preset.name);
      EXPECT_EQ(ledger.lost, 0) << preset.name << ", " << to_string(rule);
    }
}

}  // namespace
}  // namespace oktopk::reducer_auto_mass_test
