// SPDX-License-Identifier: Apache-2.0
// One rank's bad input, by NaN policy, and options that differ between the ranks: the same error on
// every rank, nothing changed anywhere.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
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
constexpr float kInf = std::numeric_limits<float>::infinity();

// A way in which a rank's input is unfit.
struct Damage {
  std::string part;  // of the message
  bool skippable;
  std::function<void(std::vector<float>& gradient, float& scale)> make;
};

const std::vector<Damage> kDamages = {
    {"gradient[7] = nan", true, [](auto& g, float&) { g[7] = g[50] = kNan; }},
    {"gradient[99] = inf", true, [](auto& g, float&) { g[99] = kInf; }},
    {"gradient[0] = -inf", true, [](auto& g, float&) { g[0] = -kInf; }},
    {"99 entries", false, [](auto& g, float&) { g.pop_back(); }},
    {"101 entries", false, [](auto& g, float&) { g.push_back(kNan); }},
    {"scale = nan", false, [](auto&, float& scale) { scale = kNan; }},
    {"scale = inf", false, [](auto&, float& scale) { scale = kInf; }},
};

// The step of a reducer whose last rank is given damaged input.
Update damaged_step(Reducer& reducer, const Damage& damage) {
  auto gradient = gradient_of(reducer, reducer.steps());
  float scale = 1;
  if (reducer.comm().rank() == reducer.comm().size() - 1) damage.make(gradient, scale);
  return reducer.step(gradient, scale);
}

class ReducerRefusal : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerRefusal, step_with_one_bad_rank_is_the_same_error_everywhere_and_no_step) {
  for (const int P : {1, 3, 5}) {
    const auto messages = gather_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, n, GetParam().options(k));
      Reducer twin(comm, n, GetParam().options(k));
      std::vector<std::string> seen;
      for (int step = 0; step < 2; ++step) {  // before the first step, and later
        for (const Damage& damage : kDamages) {
          const Bytes before = reducer.save();
          seen.push_back(message_of([&] { damaged_step(reducer, damage); }));
          EXPECT_NE(seen.back().find("rank " + std::to_string(P - 1) + ": "), std::string::npos);
          EXPECT_NE(seen.back().find(damage.part), std::string::npos) << seen.back();
          EXPECT_EQ(reducer.save(), before);
        }
        const auto gradient = gradient_of(reducer, reducer.steps());
        EXPECT_EQ(bits_of(reducer.step(gradient)), bits_of(twin.step(gradient)));
        EXPECT_EQ(reducer.save(), twin.save());
      }
      return seen;
    });
    for (const auto& seen : messages) EXPECT_EQ(seen, messages[0]) << "P = " << P;
  }
}

TEST_P(ReducerRefusal, step_with_policy_skip_is_left_out_on_every_rank) {
  for (const int P : {1, 3})
    run_world("threads", P, [&](Communicator& comm) {
      ReducerOptions options = GetParam().options(k);
      options.nan_policy = NanPolicy::skip;
      Reducer reducer(comm, n, options);
      Reducer twin(comm, n, options);
      for (std::uint64_t step = 0; step < 2; ++step) {
        const Bytes before = reducer.save();
        for (const Damage& damage : kDamages) {
          if (damage.skippable) {
            const Update update = damaged_step(reducer, damage);
            EXPECT_TRUE(update.skipped);
            EXPECT_EQ(update.size(), 0u);
            EXPECT_TRUE(reducer.sent().empty());
          } else {
            const std::string message = message_of([&] { damaged_step(reducer, damage); });
            EXPECT_NE(message.find(damage.part), std::string::npos) << message;
          }
        }
        EXPECT_EQ(reducer.steps(), step);
        EXPECT_EQ(reducer.save(), before);
        const auto gradient = gradient_of(reducer, step);
        const Update update = reducer.step(gradient);
        EXPECT_FALSE(update.skipped);
        EXPECT_EQ(bits_of(update), bits_of(twin.step(gradient)));
      }
    });
}

std::string method_name(const testing::TestParamInfo<TestedMethod>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Methods, ReducerRefusal, testing::ValuesIn(all_methods()), method_name);

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

TEST(ReducerRefusals, step_with_policy_local_throws_on_that_rank_and_the_others_miss_it) {
  std::latch stepped(3);  // nobody leaves the world while another is in the first step
  run_world(
      "threads", 3,
      [&](Communicator& comm) {
        ReducerOptions options = preset_options("circulant", k);
        options.nan_policy = NanPolicy::local;
        Reducer reducer(comm, n, options);
        std::vector<float> gradient(n, 1.0F);
        reducer.step(gradient);
        stepped.arrive_and_wait();
        if (comm.rank() != 1) {
          EXPECT_THROW(reducer.step(gradient), CommError);
          return;
        }
        gradient[5] = kNan;
        const std::string message = message_of([&] { reducer.step(gradient); });
        EXPECT_NE(message.find("gradient[5] = nan"), std::string::npos) << message;
        // It went into the residual: nobody may take that for a state.
        EXPECT_THROW(reducer.save(), UsageError);
        EXPECT_THROW(reducer.step(gradient), CommError);
        reducer.forget();
        EXPECT_NO_THROW(reducer.save());
      },
      std::chrono::milliseconds(300));
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
