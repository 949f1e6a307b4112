// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/presets.h"

#include <gtest/gtest.h>

#include <set>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::presets_test {
namespace {

TEST(Presets, names_are_unique_and_those_of_the_algorithms) {
  std::set<std::string_view> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_FALSE(preset.summary.empty());
    EXPECT_EQ(make_allreduce(preset, {})->name(), preset.name);
    EXPECT_EQ(find_preset(preset.name).name, preset.name);
  }
  EXPECT_EQ(names.size(), 10u);
}

TEST(Presets, find_of_an_unknown_name_lists_all) {
  const std::string message = message_of([] { find_preset("OkTopk"); });
  EXPECT_NE(message.find("'OkTopk'"), std::string::npos);
  for (const Preset& preset : presets()) EXPECT_NE(message.find(preset.name), std::string::npos) << message;
}

constexpr ResidualKind kKinds[] = {ResidualKind::none, ResidualKind::sender_keeps, ResidualKind::all_sent_cleared,
                                   ResidualKind::holder_keeps, ResidualKind::owner_memory};

TEST(Presets, residual_rules_have_names_that_find_them) {
  for (const ResidualKind kind : kKinds) EXPECT_EQ(find_residual(to_string(kind)), kind);
  const std::string message = message_of([] { find_residual("keep"); });
  EXPECT_NE(message.find("'keep'"), std::string::npos);
  EXPECT_NE(message.find("owner_memory"), std::string::npos);
}

TEST(Presets, make_without_a_rule_takes_the_first_of_the_preset) {
  for (const Preset& preset : presets())
    EXPECT_EQ(make_allreduce(preset, {})->options().residual, preset.residuals.front());
}

TEST(Presets, make_with_a_rule_that_does_not_fit_says_which_do) {
  for (const Preset& preset : presets())
    for (const ResidualKind kind : kKinds) {
      if (kind == ResidualKind::none) continue;
      AllreduceOptions options;
      options.residual = kind;
      const std::string message = message_of([&] { make_allreduce(preset, options); });
      const bool fits = std::count(preset.residuals.begin(), preset.residuals.end(), kind) == 1;
      EXPECT_EQ(message == "accepted", fits) << preset.name << ": " << message;
      if (fits) continue;
      EXPECT_NE(message.find(preset.name), std::string::npos);
      EXPECT_NE(message.find(to_string(kind)), std::string::npos);
      EXPECT_NE(message.find(to_string(preset.residuals.front())), std::string::npos);
    }
}

TEST(Presets, fitting_keeps_a_rule_that_conserves_mass_and_replaces_all_others) {
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(preset.conserves_mass(preset.residuals.front())) << preset.name;
    for (const ResidualKind rule : preset.losing) EXPECT_TRUE(preset.takes(rule)) << preset.name;
    for (const ResidualKind kind : kKinds) {
      const ResidualKind taken = fitting(preset, {.residual = kind}).residual;
      EXPECT_TRUE(preset.conserves_mass(taken)) << preset.name << ", " << to_string(kind);
      EXPECT_TRUE(taken == kind || !preset.conserves_mass(kind)) << preset.name;
    }
  }
  EXPECT_EQ(fitting(find_preset("gtopk"), {.residual = ResidualKind::sender_keeps}).residual,
            ResidualKind::holder_keeps);
}

// `all` holds every index of a range: frames of selections cannot be coded with it.
TEST(Presets, make_with_the_codec_of_dense_blocks_is_refused) {
  for (const Preset& preset : presets()) {
    AllreduceOptions options;
    options.codec = Codec{.index = IndexCoding::all};
    if (make_allreduce(preset, {})->is_dense()) continue;
    EXPECT_NE(message_of([&] { make_allreduce(preset, options); }), "accepted") << preset.name;
  }
}

TEST(Presets, predict_of_one_rank_costs_nothing_to_send) {
  for (const Preset& preset : presets()) {
    const Prediction p = make_allreduce(preset, {})->predict({.n = 1e6, .k = 1e4, .P = 1});
    EXPECT_EQ(p.bound.messages, 0) << preset.name;
    EXPECT_EQ(p.bound.bytes, 0) << preset.name;
    EXPECT_EQ(p.expected.bytes, 0) << preset.name;
  }
}

TEST(Presets, predict_expects_at_most_its_bound) {
  for (const Preset& preset : presets())
    for (const int P : {2, 3, 8, 100})
      for (const bool refresh : {false, true})
        for (const double exponent : {0.0, 0.5, 1.0}) {
          const Problem problem{.n = 1e6, .k = 1e4, .P = P, .union_exponent = exponent, .refresh = refresh};
          const Prediction p = make_allreduce(preset, {})->predict(problem);
          EXPECT_GT(p.expected.messages, 0);
          EXPECT_LE(p.expected.messages, p.bound.messages) << preset.name;
          EXPECT_LE(p.expected.bytes, p.bound.bytes * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.entries, p.bound.entries * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.values, p.bound.values * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.rounds, p.expected.messages) << preset.name << " " << P;
        }
}

}  // namespace
}  // namespace oktopk::presets_test
