// SPDX-License-Identifier: Apache-2.0
// Input that is graver than a NaN, the cost of notes, and options that differ between the ranks: the same error on
// every rank, nothing changed anywhere.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_refusal_test {
namespace {

constexpr Index n = 100;
constexpr std::size_t k = 10;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ReducerRefusals, step_with_policy_skip_and_a_graver_error_elsewhere_is_that_error) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options = preset_options("topka", k);
    options.nan_policy = NanPolicy::skip;
    Reducer reducer(comm, n, options);
    std::vector<float> gradient(comm.rank() == 2 ? n - 1 : n, 1.0F);
    if (comm.rank() == 0) gradient[3] = kNan;
    const std::string message = message_of([&] { reducer.step(gradient); });
    EXPECT_NE(message.find("rank 2: "), std::string::npos) << message;
  });
}

TEST(ReducerRefusals, notes_cost_what_predict_adds_and_policy_local_sends_none) {
  for (const int P : {2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      CountingCommunicator counting(comm);
      const auto run = [&](NanPolicy policy) {
        ReducerOptions options = preset_options("topka", k);
        options.nan_policy = policy;
        Reducer reducer(counting, n, options);
        reducer.step(gradient_of(reducer, 0));
        counting.reset();
        reducer.step(gradient_of(reducer, 1));
        return std::pair{counting.traffic(), state_of(reducer).predict({.n = n, .k = k, .P = P}).expected};
      };
      const auto [with, with_cost] = run(NanPolicy::error);
      const auto [without, without_cost] = run(NanPolicy::local);
      EXPECT_EQ(static_cast<double>(with.messages_sent - without.messages_sent), notes_cost(P).messages);
      EXPECT_EQ(static_cast<double>(with.bytes_sent - without.bytes_sent), notes_cost(P).bytes);
      EXPECT_DOUBLE_EQ(with_cost.bytes - without_cost.bytes, notes_cost(P).bytes);
      EXPECT_DOUBLE_EQ(with_cost.messages - without_cost.messages, notes_cost(P).messages);
    });
}

TEST(ReducerRefusals, step_with_other_options_on_one_rank_is_an_error_on_every_rank) {
  using Change = std::function<void(ReducerOptions&)>;
  const std::vector<Change> changes = {
      [](auto& o) { o.warmup = dense_warmup(1); },
      [](auto& o) {
        o.warmup = {{4, 0.25000001}};
      },
      [](auto& o) { o.warmup.clear(); },
      [](auto& o) { o.decay = 0.5F; },
      [](auto& o) { o.decay = 0.99999994F; },
      [](auto& o) { o.nan_policy = NanPolicy::skip; },
      [](auto& o) { o.nan_policy = NanPolicy::local; },
      [](auto& o) { o.selector = "gaussian"; },
      [](auto& o) { o.allreduce.codec = parse_codec("elias_fano+log8"); },
      [](auto& o) { o.allreduce.bucket = 5; },
      [](auto& o) { o.allreduce.balance_trigger = 4.0000001; },
      [](auto& o) { o.allreduce.dense = DenseSchedule::ring; },
      [](auto& o) { o.allreduce.tau_prime = 5; },
      [](auto& o) { o.preset = "circulant"; },
      [](auto& o) { o.k = k + 1; },
  };
  for (const int P : {2, 3})
    run_world("threads", P, [&](Communicator& comm) {
      for (const Change& change : changes) {
        ReducerOptions options = preset_options("oktopk", k);
        options.warmup = {{4, 0.25}};
        Reducer twin(comm, n, options);
        if (comm.rank() == P - 1) change(options);
        Reducer reducer(comm, n, options);
        const auto gradient = gradient_of(reducer, 0);
        for (int again = 0; again < 2; ++again) {
          const std::string message = message_of([&] { reducer.step(gradient); });
          EXPECT_NE(message.find("rank " + std::to_string(P - 1) + " has"), std::string::npos) << message;
        }
        EXPECT_NE(message_of([&] { reducer.flush(); }), "accepted");
        EXPECT_EQ(reducer.unsent_norm(), 0);
        EXPECT_EQ(reducer.steps(), 0u);
        EXPECT_EQ(message_of([&] { twin.step(gradient); }), "accepted");
      }
    });
}

TEST(ReducerRefusals, construction_with_a_bad_warmup_or_decay_says_which) {
  run_world("threads", 1, [](Communicator& comm) {
    const auto refusal = [&](auto change) {
      ReducerOptions options;
      change(options);
      return message_of([&] { Reducer(comm, n, options); });
    };
    for (const float decay : {0.0F, -1.0F, 1.5F, kNan})
      EXPECT_NE(refusal([&](auto& o) { o.decay = decay; }).find("decay = "), std::string::npos);
    EXPECT_NE(refusal([](auto& o) { o.warmup = {{3, 0}}; }).find("warm-up"), std::string::npos);
    EXPECT_EQ(to_string(find_nan_policy("skip")), "skip");
    EXPECT_NE(message_of([] { find_nan_policy("ignore"); }).find("local"), std::string::npos);
  });
}

}  // namespace
}  // namespace oktopk::reducer_refusal_test
