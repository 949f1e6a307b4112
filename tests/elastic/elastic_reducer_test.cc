// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/elastic_reducer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/tune/cost.h"
#include "tests/elastic/elastic_run.h"

namespace oktopk::elastic_reducer_test {
namespace {

using namespace elastic_run;  // NOLINT(google-build-using-namespace)

class ElasticKills : public testing::TestWithParam<TestedMethod> {};

// Every message of the second and third step, the agreement's included.
TEST_P(ElasticKills, member_dies_at_any_message) {
  const ReducerOptions options = only_used(GetParam().options(k));
  for (const int P : {2, 3, 4, 5}) {
    const auto victim = static_cast<std::size_t>(P) / 2;
    const std::uint64_t first = run(founders(P), options, 1).stories[victim].messages;
    const std::uint64_t last = run(founders(P), options, 3).stories[victim].messages;
    for (std::uint64_t at = P == 3 ? 0 : first; at < last; ++at) {
      std::vector<Plan> plans = founders(P);
      plans[victim].dies_at = at;
      const Chronicle ran = run(plans, options, 5);
      EXPECT_TRUE(ran.stories[victim].has_died);
      expect_sound(ran, 5, GetParam().name() + ", P = " + std::to_string(P) + ", message " + std::to_string(at));
      if (HasFailure()) return;
    }
  }
}

TEST_P(ElasticKills, two_members_die_in_one_step) {
  const ReducerOptions options = only_used(GetParam().options(k));
  const std::uint64_t one = run(founders(5), options, 2).stories[1].messages;
  for (std::uint64_t at = 0; at < 6; ++at) {
    std::vector<Plan> plans = founders(5);
    plans[1].dies_at = one + at;
    plans[2].dies_at = one + 5 - at;
    const Chronicle ran = run(plans, options, 5);
    expect_sound(ran, 5, GetParam().name() + ", " + std::to_string(at));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, ElasticKills,
                         testing::Values(TestedMethod{"circulant", ResidualKind::owner_memory},
                                         TestedMethod{"circulant", ResidualKind::sender_keeps},
                                         TestedMethod{"oktopk", ResidualKind::sender_keeps},
                                         TestedMethod{"slots", ResidualKind::owner_memory},
                                         TestedMethod{"dense", ResidualKind::none},
                                         TestedMethod{"topka", ResidualKind::all_sent_cleared}),
                         [](const auto& method) { return method.param.name(); });

// Every message of a step that is refused because of one member's gradient, and of the step after it.
TEST(ElasticReducer, refused_step_is_refused_on_all_members_whoever_dies_in_it) {
  const ReducerOptions options = preset_options("circulant", k);
  std::uint64_t refusals = 0;
  for (const int P : {2, 3, 5}) {
    for (const auto victim : {std::size_t{0}, static_cast<std::size_t>(P - 1)}) {
      const std::uint64_t first = run(founders(P), options, 2).stories[victim].messages;
      for (std::uint64_t at = first; at < first + 12; ++at) {
        std::vector<Plan> plans = founders(P);
        plans[static_cast<std::size_t>(P) / 2].unfit = 2;
        plans[victim].dies_at = at;
        const Chronicle ran = run(plans, options, 5);
        const std::string what = text_of("P = ", P, ", member ", victim + 1, ", message ", at);
        expect_sound(ran, 5, what);
        const Story& one = ran.stories[victim == 0 ? 1 : 0];
        for (const Story& story : ran.stories)
          if (!story.has_died) {
            EXPECT_EQ(story.refusals, one.refusals) << what;
          }
        refusals += static_cast<std::uint64_t>(one.refusals);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(refusals, 10U);
}

TEST(ElasticReducer, steps_without_trouble_equal_those_of_a_reducer) {
  const ReducerOptions options = preset_options("circulant", k);
  const Chronicle ran = run(founders(3), options, 6, Input::skewed);
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 6; ++step)
      ASSERT_EQ(bits_of(reducer.step(gradient_at(static_cast<MemberId>(comm.rank()) + 1, step, Input::skewed))),
                ran.stories[0].bits[step]);
  });
}

TEST(ElasticReducer, member_that_joins_continues_with_the_weights_of_the_others) {
  std::vector<Plan> plans = founders(2);
  plans.push_back({.id = 3, .joins = true});
  ReducerOptions options = preset_options("circulant", k);
  options.warmup = {{4, 0.1}};
  const Chronicle ran = run(plans, options, 200);
  expect_sound(ran, 200, "join");
  ASSERT_TRUE(ran.stories[2].has_run);
  ASSERT_FALSE(ran.stories[0].changes.empty());
  EXPECT_EQ(ran.stories[0].changes.back().joined, std::vector<MemberId>{3});
  EXPECT_EQ(ran.stories[0].changes.back().P, 3);
}

TEST(ElasticReducer, many_joins_and_losses_in_one_run) {
  const ReducerOptions options = preset_options("circulant", k);
  std::atomic<std::uint64_t> progress = 0;
  std::vector<Plan> plans = founders(3);
  plans[0].progress = &progress;
  for (MemberId id = 4; id < 54; ++id)
    plans.push_back({.id = id, .dies_at = 20 + id * 37 % 211, .joins = true, .progress = &progress, .turn = 3 * id});
  const Chronicle ran = run(plans, options, 320);
  std::uint64_t died = 0;
  for (const Story& story : ran.stories) died += story.has_died && story.has_run ? 1 : 0;
  EXPECT_EQ(died, 50U);
  for (const Story& story : ran.stories)
    if (!story.has_died) {
      EXPECT_EQ(story.weights, ran.stories[0].weights);
    }
}

// Weights after 60 steps of AdamW; empty where the member died.
std::vector<float> train(ElasticThreads& world, MemberId id) {
  std::vector<float> weights(n, 0.0F);
  try {
    const auto member = id == 4 ? world.join(id) : world.found(id, 3, id == 3 ? 60 : kNeverDies);
    SparseAdamW* trained = nullptr;
    Bytes received;
    ElasticHooks hooks;
    hooks.save_shared = [&] {
      return write_state([&](StateWriter& state) {
        state.put_all(std::span<const float>(weights));
        state.put_bytes(trained->save_shared());
      });
    };
    hooks.load_shared = [&](std::span<const std::byte> bytes) { received.assign(bytes.begin(), bytes.end()); };
    ElasticReducer elastic(*member, n, preset_options("oktopk", k), hooks);
    SparseAdamW optimiser(elastic, {.learning_rate = 0.01F});
    trained = &optimiser;
    if (!received.empty()) {
      StateReader state(received);
      weights = state.take_all<float>();
      optimiser.load_shared(state.take_view());
    }
    while (elastic.committed() < 60) optimiser.step(weights, gradient_at(id, elastic.committed(), Input::dyadic));
    return weights;
  } catch (const CommError&) {
    return {};
  }
}

TEST(ElasticReducer, drives_an_optimiser_through_a_loss_and_a_join) {
  ElasticThreads world;
  std::vector<std::vector<float>> weights(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t m = 0; m < weights.size(); ++m) threads.emplace_back([&, m] { weights[m] = train(world, m + 1); });
  }
  EXPECT_TRUE(weights[2].empty());
  ASSERT_FALSE(weights[0].empty());
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[0], weights[3]);
}

TEST(ElasticReducer, predicts_the_agreement_and_refuses_options_that_need_the_same_ranks) {
  ElasticThreads world;
  const auto member = world.found(1, 1);
  const ElasticReducer elastic(*member, n, preset_options("topka", k));
  const Problem problem{.n = n, .k = k, .P = 8};
  const Prediction plain = state_of(elastic.reducer()).predict(problem);
  EXPECT_EQ(elastic.predict(problem).expected.messages, plain.expected.messages + 3);
  EXPECT_THROW(ElasticReducer(*member, n, {}), UsageError);
}

TEST(ElasticReducer, metrics_have_epoch_and_members) {
  ElasticThreads world;
  const auto member = world.found(1, 1);
  ElasticReducer elastic(*member, n, preset_options("topka", k));
  elastic.step(gradient_at(1, 0, Input::skewed));
  EXPECT_EQ(elastic.metrics().epoch, 1u);
  EXPECT_EQ(elastic.metrics().members, 1);
  EXPECT_EQ(elastic.metrics().step, 1u);
}

}  // namespace
}  // namespace oktopk::elastic_reducer_test
