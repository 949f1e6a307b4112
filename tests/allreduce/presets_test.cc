// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/presets.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/codec/frame.h"
#include "oktopk/laws/truth.h"
#include "oktopk/sparse/slots_format.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"

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

TEST(Presets, predict_expects_at_most_its_bound) {
  for (const Preset& preset : presets())
    for (const int P : {1, 2, 3, 8, 100})
      for (const bool refresh : {false, true})
        for (const double exponent : {0.0, 0.5, 1.0}) {
          const Problem problem{.n = 1e6, .k = 1e4, .P = P, .union_exponent = exponent, .refresh = refresh};
          const Prediction p = make_allreduce(preset, {})->predict(problem);
          EXPECT_EQ(p.expected.messages > 0, P > 1) << preset.name;
          EXPECT_EQ(p.bound.bytes > 0, P > 1) << preset.name;
          EXPECT_LE(p.expected.messages, p.bound.messages) << preset.name;
          EXPECT_LE(p.expected.bytes, p.bound.bytes * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.entries, p.bound.entries * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.values, p.bound.values * (1 + 1e-12)) << preset.name << " " << P;
          EXPECT_LE(p.expected.rounds, p.expected.messages) << preset.name << " " << P;
        }
}

// The published costs of a step, without predict(): messages and bytes that each rank sends.
TEST(Presets, run_costs_what_was_published) {
  constexpr std::uint64_t n = 100000;
  struct Sent {
    std::uint64_t messages, least, most;
  };
  const auto rounds = [](std::uint64_t P) { return static_cast<std::uint64_t>(ceil_log2(static_cast<int>(P))); };
  const auto exactly = [](std::uint64_t messages, std::uint64_t bytes) { return Sent{messages, bytes, bytes}; };
  const struct {
    const char* preset;
    std::uint64_t k;
    std::function<Sent(std::uint64_t P, std::uint64_t k)> sent;
  } rows[] = {
      // 2k words of every peer; a frame's head of 6 bytes, 2 for its size
      {"topka", 1000, [&](auto P, auto k) { return exactly(rounds(P), (P - 1) * (8 * k + 6 + 2)); }},
      // (2k + n)/P words per peer; the dense frame has a head of 5 bytes, its size takes 3
      {"topka2a", 1000,
       [&](auto P, auto k) {
         const std::uint64_t sparse = 8 * k / P + frame_head_bytes({}, k / P);
         return exactly(P - 1 + rounds(P), (P - 1) * (sparse + 4 * n / P + 5 + 3));
       }},
      // 4k/P words per peer, whatever the fill-in: every block is pruned before it travels
      {"spardl", 1003,
       [&](auto P, auto k) {
         const std::uint64_t quota = (k + P - 1) / P;
         return Sent{2 * rounds(P), (P - 1) * 15 * (k / P),
                     (P - 1) * (16 * quota + 2 * frame_head_bytes({}, quota) + 2)};
       }},
      // messages of one size
      {"slots", 1000,
       [&](auto P, auto k) {
         const auto words = slots::message_words(slots::Deal::of(n, static_cast<std::uint32_t>(P)), k);
         return exactly(P - 1 + rounds(P), 2 * (P - 1) * (words * 4 + kCheckBytes));
       }},
  };
  for (const auto& row : rows)
    for (const std::uint64_t P : {8U, 5U, 1U})
      for (const Input input : {Input::gaussian, Input::skewed, Input::zero}) {
        const bool has_any_size = row.preset == std::string("slots");
        if (input != Input::gaussian && !has_any_size) continue;
        const Sent sent = row.sent(P, row.k);
        for (const auto& rank : run_input(static_cast<int>(P), preset_options(row.preset, row.k), n, 3, input))
          for (std::size_t step = 1; step < 3; ++step) {
            const Traffic& t = rank[step].traffic;
            EXPECT_EQ(t.messages_sent, sent.messages) << row.preset << ", P = " << P;
            EXPECT_GE(t.bytes_sent, sent.least) << row.preset << ", P = " << P;
            EXPECT_LE(t.bytes_sent, sent.most) << row.preset << ", P = " << P;
          }
      }
}

TEST(Presets, run_with_indices_beyond_24_bits_and_P_times_n_beyond_31_is_exact) {
  constexpr Index n = 600000000;
  for (const char* preset : {"topka", "topkdsa", "gtopk", "spardl", "oktopk", "circulant"})
    for (const char* codec : {"coo32", "elias_fano"}) {
      AllreduceOptions options = with_codec(codec);
      if (preset == std::string("circulant")) options.residual = ResidualKind::sender_keeps;
      const History run =
          run_selections(5, preset, options, n, 50, 2, [](int rank, int step) { return both_ends(n, rank, step, 50); });
      const auto allreduce = make_allreduce(find_preset(preset), options);
      Truth truth(*allreduce, n, 50);
      for (std::size_t step = 0; step < 2; ++step) {
        const Outcome& first = run[0][step].outcome;
        EXPECT_EQ(truth.check({selections_of(run, step), {}, entries_of(first.update), first.refreshed}, step), 0u)
            << preset << ": " << truth.detail();
        for (const auto& rank : run) EXPECT_EQ(list_of(rank[step].outcome.update), list_of(first.update)) << preset;
      }
      EXPECT_GT(run[0][0].outcome.update.idx.back(), n - 100) << preset;
    }
}

}  // namespace
}  // namespace oktopk::presets_test
