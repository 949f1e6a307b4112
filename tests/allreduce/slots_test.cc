// SPDX-License-Identifier: Apache-2.0
// slots: counts that follow k; nothing starves when messages are full.
#include <gtest/gtest.h>

#include "oktopk/reduce/reducer_state.h"
#include "oktopk/sparse/slots_format.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"

namespace oktopk::slots_test {
namespace {

TEST(Slots, run_applies_about_k_entries_under_error_feedback) {
  constexpr std::size_t k = 1000;
  for (const int P : {1, 2, 5}) {
    const History run = run_input(P, preset_options("slots", k), 100000, 60, Input::gaussian);
    double selected = 0, applied = 0;
    for (std::size_t step = 20; step < 60; ++step) {
      selected += static_cast<double>(run[0][step].selection.size()) / 40;
      applied += static_cast<double>(run[0][step].outcome.update.size()) / 40;
    }
    EXPECT_NEAR(selected, k, 0.1 * k) << "P = " << P;
    EXPECT_NEAR(applied, k, 0.1 * k) << "P = " << P;
  }
}

// All entries are equal, so every threshold selects all of them, and messages are full in every step.
TEST(Slots, run_with_full_messages_reaches_every_index_in_time) {
  constexpr Index n = 20000;
  std::vector<bool> reached(n, false);
  const History run = run_gradients(2, preset_options("slots", 200), n, 250,
                                    [&](int, int step) { return std::vector<float>(n, step == 0 ? 1.0F : 0.0F); });
  for (const RankStep& step : run[0])
    for (const Index i : step.outcome.update.idx) reached[i] = true;
  EXPECT_EQ(std::ranges::count(reached, true), n);
}

// Gradients that change their sign make a threshold that follows counts let far more through than fits.
TEST(Slots, run_lists_as_sent_what_left_and_keeps_the_rest) {
  constexpr Index n = 20000;
  constexpr std::size_t k = 624;
  for (const int P : {1, 3}) {
    const auto ranks = static_cast<std::uint32_t>(P);
    const std::size_t room = ranks * slots::message_room(slots::Deal::of(n, ranks), k);
    const History run = run_gradients(P, preset_options("slots", k), n, 40, [&](int rank, int step) {
      std::vector<float> x = make_input(Input::gaussian, n, rank, 0, 1);
      for (float& value : x) value *= step % 2 == 0 ? 1.0F : -1.5F;
      return x;
    });
    std::size_t held = 0;
    for (const auto& rank : run)
      for (const RankStep& step : rank) {
        EXPECT_LE(step.selection.size(), room);
        for (std::size_t i = 0; i < step.selection.size(); ++i)  // only rounding errors are left of what was sent
          ASSERT_LE(std::fabs(step.residual[step.selection.idx[i]]), 0x1p-8F * std::fabs(step.selection.val[i]));
        for (std::size_t i = 0; i < step.outcome.held.size(); ++i)
          ASSERT_EQ(step.residual[step.outcome.held.idx[i]], step.outcome.held.val[i]);
        held += step.outcome.held.size();
      }
    EXPECT_GT(held, k) << "P = " << P;
  }
}

TEST(Slots, run_keeps_what_rounding_and_a_full_message_leave) {
  const History run = run_gradients(1, preset_options("slots", 1), 5000, 1, [](int, int) {
    std::vector<float> x(5000, 0.0F);
    x[7] = 1.0F + 0x1p-20F;  // one bit too fine for a value on the wire
    return x;
  });
  const RankStep& step = run[0][0];
  ASSERT_EQ(step.outcome.update.size(), 1u);
  EXPECT_EQ(step.outcome.update.val[0], 1.0F);
  EXPECT_EQ(step.residual[7], 0x1p-20F);
}

TEST(Slots, options_a_codec_is_refused_and_named) {
  run_world("threads", 1, [](Communicator& comm) {
    ReducerOptions options = preset_options("slots", 5);
    options.allreduce.codec = parse_codec("elias_fano+bf16");
    const std::string text = message_of<UsageError>([&] { Reducer(comm, 100, options); });
    EXPECT_NE(text.find("elias_fano+bf16"), std::string::npos) << text;
    EXPECT_NE(text.find("12 bits of place"), std::string::npos) << text;
  });
}

TEST(Slots, metrics_name_the_coding_of_the_entries) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, 1000, preset_options("slots", 10));
    reducer.step(std::vector<float>(1000, 1.0F));
    EXPECT_EQ(reducer.metrics().codec, "place12+float20");
  });
}

}  // namespace
}  // namespace oktopk::slots_test
