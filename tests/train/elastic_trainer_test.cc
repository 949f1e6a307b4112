// SPDX-License-Identifier: Apache-2.0
// Training over members that come and go: whoever lives ends with the same weights, and a loss like that of a run that
// nobody disturbs.
#include "tools/train/elastic_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "tests/support/elastic_threads.h"
#include "tests/support/message.h"
#include "tests/train/small_problem.h"

namespace oktopk::elastic_trainer_test {
namespace {

constexpr std::uint64_t kBatch = 10;  // not a multiple of the number of members

struct Fate {
  std::uint64_t dies_at = kNeverDies;
  bool joins = false;
};
using Runs = std::vector<std::optional<ElasticRun>>;

constexpr std::uint64_t kStepOfJoining = 20;

// Founders wait there, so that the run is not over before the others come.
void await_joiners(ElasticThreads& world) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!world.has_joiners() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

std::optional<ElasticRun> live(ElasticThreads& world, MemberId id, const Fate& fate, int founders, bool has_joiners,
                               const TrainOptions& options) {
  try {
    const auto member = fate.joins ? world.join(id, fate.dies_at) : world.found(id, founders, fate.dies_at);
    const ElasticTrainHooks hooks{.on_step = [&](int, std::uint64_t step, double) {
      if (has_joiners && step == kStepOfJoining && member->membership().epoch == 1) await_joiners(world);
    }};
    return train_elastic(*member, small_problem(), options, kBatch, hooks);
  } catch (const CommError&) {
    return std::nullopt;
  }
}

Runs train_all(const std::vector<Fate>& fates, const TrainOptions& options) {
  ElasticThreads world;
  Runs runs(fates.size());
  const auto founders = static_cast<int>(std::ranges::count(fates, false, &Fate::joins));
  const bool has_joiners = founders < static_cast<int>(fates.size());
  std::vector<std::jthread> threads;
  for (std::size_t m = 0; m < fates.size(); ++m)
    threads.emplace_back([&, m] { runs[m] = live(world, m + 1, fates[m], founders, has_joiners, options); });
  threads.clear();  // joins
  return runs;
}

TEST(ElasticTrainer, members_that_stay_are_equal_and_learn) {
  const Runs runs = train_all({{}, {}, {}}, small_run("circulant", 200));
  for (const auto& run : runs) {
    ASSERT_TRUE(run.has_value());
    EXPECT_EQ(run->weights, runs[0]->weights);
    EXPECT_EQ(run->steps, 200U);
    EXPECT_EQ(run->members, (std::vector<MemberId>{1, 2, 3}));
    EXPECT_TRUE(run->lost.empty());
    EXPECT_LT(run->test_loss, 1.2);
  }
}

// The first messages are the comparison of the optimisers' options; the last ones the flush and its agreement.
TEST(ElasticTrainer, member_dies_at_any_message_of_a_run) {
  for (const std::string optimiser : {"momentum", "adam"}) {
    TrainOptions options = small_run("circulant", 4);
    options.recipe.optimiser = optimiser;
    options.recipe.start = "none";
    std::uint64_t at = 0;
    for (bool has_died = true; has_died; ++at) {
      const Runs runs = train_all({{}, {.dies_at = at}, {}}, options);
      has_died = !runs[1].has_value();
      ASSERT_TRUE(runs[0].has_value() && runs[2].has_value()) << optimiser << ", message " << at;
      EXPECT_EQ(runs[0]->weights, runs[2]->weights) << optimiser << ", message " << at;
    }
    EXPECT_GT(at, 20U);
  }
}

TEST(ElasticTrainer, loss_after_two_deaths_is_like_that_of_a_calm_run) {
  const TrainOptions options = small_run("circulant", 200);
  const double calm = train_all({{}, {}, {}, {}}, options)[0]->test_loss;
  const Runs runs = train_all({{}, {.dies_at = 300}, {.dies_at = 500}, {}}, options);
  ASSERT_TRUE(runs[0].has_value() && runs[3].has_value());
  EXPECT_FALSE(runs[1].has_value() || runs[2].has_value());
  EXPECT_EQ(runs[0]->lost, (std::vector<MemberId>{2, 3}));
  EXPECT_EQ(runs[0]->weights, runs[3]->weights);
  EXPECT_NEAR(runs[0]->test_loss, calm, 0.2 * calm);
}

TEST(ElasticTrainer, member_that_joins_ends_with_the_weights_of_the_others) {
  for (const std::string optimiser : {"momentum", "adam"}) {
    TrainOptions options = small_run("circulant", 300);
    options.recipe.optimiser = optimiser;
    options.recipe.flush = optimiser != "adam";
    const Runs runs = train_all({{}, {}, {.joins = true}}, options);
    for (const auto& run : runs) {
      ASSERT_TRUE(run.has_value());
      EXPECT_EQ(run->weights, runs[0]->weights);
    }
    EXPECT_EQ(runs[0]->joined, std::vector<MemberId>{3});
  }
}

TEST(ElasticTrainer, shares_cover_the_batch_once) {
  for (const int P : {1, 2, 3, 5, 7, 12})
    for (const std::uint64_t batch : {1, 5, 64}) {
      std::uint64_t next = 0;
      for (int rank = 0; rank < P; ++rank) {
        const BatchShare share = share_of(batch, rank, P);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.count, batch / static_cast<std::uint64_t>(P) + 1);
        next += share.count;
      }
      EXPECT_EQ(next, batch);
    }
}

TEST(ElasticTrainer, refuses_options_that_need_ranks_which_stay) {
  const auto refusal = [](auto change) {
    TrainOptions options = small_run("circulant", 3);
    change(options);
    return message_of([&] {
      ElasticThreads world;
      train_elastic(*world.found(1, 1), small_problem(), options, kBatch);
    });
  };
  EXPECT_NE(refusal([](auto& o) { o.group = 2; }).find("group = 2"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.recipe.clip_norm = 1; }).find("clip = 1"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.recipe.sparsify = "updates"; }).find("sparsify = updates"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.steps = 0; }).find("steps = 0"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::elastic_trainer_test
