// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/elastic_reducer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
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

TEST(ElasticReducer, predicts_the_agreement_has_its_epoch_and_refuses_options_that_need_the_same_ranks) {
  ElasticThreads world;
  const auto member = world.found(1, 1);
  ElasticReducer elastic(*member, n, preset_options("topka", k));
  const Problem problem{.n = n, .k = k, .P = 8};
  const Prediction plain = state_of(elastic.reducer()).predict(problem);
  EXPECT_EQ(elastic.predict(problem).expected.messages, plain.expected.messages + 3);
  EXPECT_THROW(ElasticReducer(*member, n, {}), UsageError);
  elastic.step(gradient_at(1, 0, Input::skewed));
  EXPECT_EQ(elastic.metrics().epoch, 1u);
  EXPECT_EQ(elastic.metrics().members, 1);
  EXPECT_EQ(elastic.metrics().step, 1u);
}

// ---- Losses that are recovered and reported, members that leave, and the caller's own collectives ----

class ElasticMembers : public testing::TestWithParam<TestedMethod> {
 protected:
  const ReducerOptions options = only_used(GetParam().options(k));
  const bool has_memory = GetParam().rule == ResidualKind::owner_memory;
};

TEST_P(ElasticMembers, loss_of_an_owner_is_reported_and_its_memory_recovered) {
  std::vector<Plan> plans = founders(5);
  plans[2].dies_in = 6;
  plans[2].dies_at = 1;
  const Chronicle ran = run(plans, options, 10);
  expect_sound(ran, 10, "one owner");
  const std::optional<MemberLoss> loss = reported(ran, 3);
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->memory, has_memory ? MemoryFate::recovered : MemoryFate::none);
  EXPECT_EQ(loss->heir, has_memory ? 4U : 0U);
  ASSERT_GE(loss->unsent.step, 4U) << "of six or five steps; a measure travels with the next step";
  const auto [residual, memory] = ran.stories[2].totals.at(loss->unsent.step - 1);
  EXPECT_NEAR(loss->unsent.residual_sum, residual, 1e-6);
  EXPECT_NEAR(loss->unsent.memory_sum, memory, 1e-6);
}

TEST_P(ElasticMembers, memory_is_lost_when_owner_and_holder_die_together) {
  bool is_seen = false;  // the first one may die before the second has ended the step before
  for (int tries = 0; tries < 50 && !is_seen; ++tries) {
    std::vector<Plan> plans = founders(5);
    for (const std::size_t m : {2, 3}) plans[m].dies_in = 6, plans[m].dies_at = static_cast<std::uint64_t>(tries % 4);
    const Chronicle ran = run(plans, options, 10);
    expect_sound(ran, 10, "owner and holder");
    is_seen = ran.stories[0].changes.size() == 1;
    EXPECT_EQ(reported(ran, 3).value().memory, !has_memory ? MemoryFate::none
                                               : is_seen   ? MemoryFate::lost
                                                           : MemoryFate::recovered);
    EXPECT_EQ(reported(ran, 4).value().memory, has_memory ? MemoryFate::recovered : MemoryFate::none);
  }
  EXPECT_TRUE(is_seen);
}

TEST_P(ElasticMembers, member_that_leaves_takes_nothing_with_it) {
  for (const int P : {2, 3, 5}) {
    std::vector<Plan> plans = founders(P);
    plans[1].last = 4;
    if (P == 5) plans[2].last = 4;  // two at once, the heir of the first among them
    const Chronicle ran = run(plans, options, 9);
    expect_sound(ran, 9, "P = " + std::to_string(P));
    EXPECT_TRUE(ran.stories[1].has_left);
    EXPECT_EQ(reported(ran, 2).value().id, 0U);
  }
}

// Every message of the last step and of the handover; of the member that leaves and of its heir.
TEST_P(ElasticMembers, death_at_any_message_of_a_handover_loses_no_more_than_is_reported) {
  for (const std::size_t victim : {1, 2}) {
    std::uint64_t died = 0;
    for (std::uint64_t at = 0; at < 40; ++at) {
      std::vector<Plan> plans = founders(3);
      plans[1].last = 4;
      plans[victim].dies_in = 4;
      plans[victim].dies_at = at;
      const Chronicle ran = run(plans, options, 9);
      expect_sound(ran, 9, "victim " + std::to_string(victim) + ", message " + std::to_string(at));
      died += ran.stories[victim].has_died ? 1 : 0;
      if (HasFailure() || (victim == 1 && ran.stories[1].has_left)) break;
    }
    EXPECT_GT(died, 3U);
  }
}

TEST_P(ElasticMembers, all_leave_after_the_same_step) {
  std::vector<Plan> plans = founders(3);
  for (Plan& plan : plans) plan.last = 4;
  const Chronicle ran = run(plans, options, 9);
  for (const Story& story : ran.stories) {
    EXPECT_TRUE(story.has_left);
    EXPECT_EQ(story.bits, ran.stories[0].bits);
    EXPECT_EQ(story.bits.size(), 5U);
  }
}

// The book over many changes at random: deaths, two at once, owner and holder at once, leaves and joins.
TEST_P(ElasticMembers, book_balances_over_fifty_random_changes) {
  constexpr std::uint64_t kSteps = 170;
  Random random(17, 3);
  std::atomic<std::uint64_t> progress = 0;
  std::vector<Plan> plans = founders(5);
  plans[0].progress = &progress;
  for (MemberId id = 6; id <= 40; ++id)
    plans.push_back({.id = id, .joins = true, .progress = &progress, .turn = 1 + (id - 6) * 4});
  for (std::size_t m = 2; m < plans.size(); ++m) {
    const std::uint64_t end = plans[m].turn + 8 + random.below(12);
    const std::uint64_t kind = random.below(4);
    if (kind == 0) plans[m].last = end;
    if (kind != 0) plans[m].dies_in = end, plans[m].dies_at = random.below(14);
    if (kind == 3 && m > 2) plans[m].dies_in = plans[m - 1].dies_in;  // with the member before, or never
  }
  const Chronicle ran = run(plans, options, kSteps);
  expect_sound(ran, kSteps, "random changes");
  std::size_t changes = 0, lost = 0, left = 0;
  for (const MembershipChange& change : ran.stories[0].changes) {
    changes += change.lost.size() + change.left.size() + change.joined.size();
    lost += change.lost.size();
    left += change.left.size();
  }
  EXPECT_GE(changes, 50U);
  EXPECT_GT(lost, 5U);
  EXPECT_GT(left, 2U);
}

INSTANTIATE_TEST_SUITE_P(Methods, ElasticMembers,
                         testing::Values(TestedMethod{"circulant", ResidualKind::owner_memory},
                                         TestedMethod{"circulant", ResidualKind::sender_keeps},
                                         TestedMethod{"slots", ResidualKind::owner_memory}),
                         [](const auto& method) { return method.param.name(); });

TEST(ElasticReducer, calls_after_leaving_are_refused) {
  ElasticThreads world;
  const auto member = world.found(1, 1);
  ElasticReducer elastic(*member, n, preset_options("circulant", k));
  elastic.leave_after_next();
  elastic.leave_after_next();  // again, after a refused step for example
  elastic.step(gradient_at(1, 0, Input::dyadic));
  EXPECT_TRUE(elastic.has_left());
  EXPECT_THROW(elastic.step(gradient_at(1, 1, Input::dyadic)), UsageError);
  EXPECT_THROW(ElasticReducer(*member, n, preset_options("circulant", k), {}, {.measure_every = -1}), UsageError);
}

// Training with a collective of the caller in each step; one member dies at a given message, one joins.
std::vector<float> clip_and_train(ElasticThreads& world, MemberId id, std::uint64_t dies_at) {
  std::vector<float> weights(n, 0.0F);
  try {
    const auto member = id == 4 ? world.join(id) : world.found(id, 3, id == 3 ? dies_at : kNeverDies);
    ElasticHooks hooks;
    hooks.save_shared = [&] { return to_bytes(weights); };
    hooks.load_shared = [&](std::span<const std::byte> bytes) {
      std::memcpy(weights.data(), bytes.data(), bytes.size());
    };
    ElasticReducer elastic(*member, n, preset_options("circulant", k), hooks);
    SparseSGD optimiser(elastic, {.learning_rate = 0.1F, .clip_norm = 1.0F});
    while (elastic.committed() < 12) {
      std::uint64_t members = 0;
      elastic.collective(std::as_writable_bytes(std::span(&members, 1)), [&](Communicator& comm) {
        Workspace work;
        members = allreduce_small(comm, std::uint64_t{1}, Reduction::sum, work);
      });
      EXPECT_GE(members, 2U);
      if (elastic.committed() == 11) elastic.leave_after_next();
      optimiser.step(weights, gradient_at(id, elastic.committed(), Input::skewed));
    }
    return weights;
  } catch (const CommError&) {
    return {};
  }
}

TEST(ElasticReducer, callers_collectives_and_clipping_survive_a_death_at_any_message_and_a_join) {
  // The first messages are an optimiser's comparison of options, which is not repaired.
  for (std::uint64_t dies_at = 8; dies_at < 60; ++dies_at) {
    ElasticThreads world;
    std::vector<std::vector<float>> weights(4);
    {
      std::vector<std::jthread> threads;
      for (std::size_t m = 0; m < weights.size(); ++m)
        threads.emplace_back([&, m] { weights[m] = clip_and_train(world, m + 1, dies_at); });
    }
    EXPECT_TRUE(weights[2].empty());
    ASSERT_FALSE(weights[0].empty()) << dies_at;
    EXPECT_EQ(weights[0], weights[1]) << dies_at;
    if (!weights[3].empty()) {
      EXPECT_EQ(weights[0], weights[3]) << dies_at;
    }
  }
}

}  // namespace
}  // namespace oktopk::elastic_reducer_test
