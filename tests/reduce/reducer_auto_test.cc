// SPDX-License-Identifier: Apache-2.0
// Preset auto: the reducer does what the chosen preset would do, changes it in the middle of a
// stream without losing anything, and all ranks agree.
#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/laws/inputs.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::reducer_auto_test {
namespace {

constexpr Index n = 3000;
constexpr int kReviews = 70;  // steps in which two reviews fall

Profile slow_network() {
  Profile profile;
  profile.machine.beta = 1e-5;
  return profile;
}

Profile slow_processor() {
  Profile profile;
  profile.machine.beta = 0;
  profile.machine.sigma = 1e-3;
  return profile;
}

// Predicts next to nothing, so that every step disappoints by the largest correction: a review
// leaves what it has for the other candidate.
Profile boundless_hope() {
  Profile profile;
  profile.machine = {.alpha = 1e-12, .beta = 1e-15, .gamma = 1e-15};
  return profile;
}

ReducerOptions auto_options(const Profile& profile) {
  ReducerOptions options;
  options.density = 0.01;
  options.profile = profile;
  options.choice.presets = {"circulant"};
  options.choice.coarsest = ValueCoding::fp32;
  return options;
}

std::vector<float> gradient_of(int rank, int step) {
  return make_input(Input::dyadic, n, rank, static_cast<std::uint64_t>(step), 1);
}

void subtract(std::vector<double>& sum, const Outcome& applied) {
  for (std::size_t i = 0; i < applied.update.size(); ++i) sum[applied.update.idx[i]] -= applied.update.val[i];
  for (std::size_t i = 0; i < applied.dense_update.size(); ++i) sum[i] -= applied.dense_update[i];
}

// The profile makes every review change the choice.
TEST(ReducerAuto, without_reviews_two_runs_give_the_same_bits) {
  const auto run = [](bool review) {
    return gather_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = auto_options(boundless_hope());
      options.choice.review = review;
      Reducer reducer(comm, n, options);
      const Method first = state_of(reducer).tuner->choice().method;
      std::vector<float> weights(n);
      bool has_changed = false;
      for (int step = 0; step < kReviews; ++step) {
        reducer.step(gradient_of(comm.rank(), step)).subtract_from(weights);
        has_changed = has_changed || state_of(reducer).tuner->choice().method != first;
      }
      EXPECT_EQ(has_changed, review);
      return std::pair(weights, review ? Bytes{} : reducer.save());
    });
  };
  run(true);
  EXPECT_EQ(run(false), run(false));
}

TEST(ReducerAuto, is_the_default) { EXPECT_EQ(ReducerOptions{}.preset, "auto"); }

TEST(ReducerAuto, takes_the_preset_of_the_profile) {
  for (const int P : {2, 3, 5})
    run_world("threads", P, [](Communicator& comm) {
      EXPECT_EQ(Reducer(comm, n, auto_options(slow_network())).metrics().preset, "circulant");
      EXPECT_EQ(Reducer(comm, n, auto_options(slow_processor())).metrics().preset, "dense");
    });
}

TEST(ReducerAuto, gives_what_the_chosen_method_gives) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, auto_options(slow_network()));
    const Method method = state_of(reducer).tuner->choice().method;
    ReducerOptions same;
    same.preset = method.preset;
    same.allreduce = method.options({});
    Reducer twin(comm, n, same);
    for (int step = 0; step < 10; ++step) {
      const auto gradient = gradient_of(comm.rank(), step);
      const Update a = reducer.step(gradient);
      const Update b = twin.step(gradient);
      ASSERT_EQ(a.sparse.size(), b.sparse.size());
      for (std::size_t i = 0; i < a.sparse.size(); ++i) {
        EXPECT_EQ(a.sparse.idx[i], b.sparse.idx[i]);
        EXPECT_EQ(a.sparse.val[i], b.sparse.val[i]);
      }
    }
  });
}

TEST(ReducerAuto, measures_before_the_first_step_and_all_ranks_choose_alike) {
  for (const int P : {1, 2, 3, 4}) {
    const auto methods = gather_world("threads", P, [](Communicator& comm) {
      Reducer reducer(comm, n, {});
      reducer.step(gradient_of(comm.rank(), 0));
      EXPECT_EQ(state_of(reducer).tuner->is_calibrated(), comm.size() > 1);
      return to_string(state_of(reducer).tuner->choice().method);
    });
    for (const std::string& method : methods) EXPECT_EQ(method, methods[0]);
  }
}

TEST(ReducerAuto, changes_its_choice_and_loses_no_mass) {
  for (const int P : {2, 3, 4}) {
    const auto seen = gather_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, n, auto_options(boundless_hope()));
      std::vector<double> balance(n, 0.0);  // brought - applied - unsent, of this rank
      std::string names;
      for (int step = 0; step < kReviews; ++step) {
        const auto gradient = gradient_of(comm.rank(), step);
        for (std::size_t i = 0; i < n; ++i) balance[i] += gradient[i];
        const std::string name(state_of(reducer).allreduce->name());
        if (!names.ends_with(name)) names += " " + name;
        reducer.step(gradient);
        if (comm.rank() == 0) subtract(balance, state_of(reducer).outcome);
      }
      for (std::size_t i = 0; i < n; ++i) balance[i] -= state_of(reducer).unsent.values()[i];
      const OwnerMemory memory = state_of(reducer).unsent.memory();
      for (std::size_t i = 0; i < memory.values.size(); ++i)
        if (memory.values[i] != 0) balance[memory.index(i)] -= memory.values[i];
      return std::pair(names, balance);
    });
    std::vector<double> total(n, 0.0);
    for (const auto& [names, balance] : seen) {
      EXPECT_EQ(names, seen[0].first);
      EXPECT_NE(names.find("circulant dense"), std::string::npos) << names;
      for (std::size_t i = 0; i < n; ++i) total[i] += balance[i];
    }
    EXPECT_EQ(total, std::vector<double>(n, 0.0)) << "P = " << P;
  }
}

TEST(ReducerAuto, continues_from_a_state_saved_after_a_change) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, auto_options(boundless_hope()));
    for (int step = 0; step < 20; ++step) reducer.step(gradient_of(comm.rank(), step));
    ASSERT_EQ(state_of(reducer).allreduce->name(), "dense");
    Reducer restored(comm, n, auto_options(boundless_hope()));
    restored.load(reducer.save());
    EXPECT_EQ(state_of(restored).allreduce->name(), "dense");
    EXPECT_EQ(restored.steps(), 20U);
    // Up to the next review, which follows the clock.
    for (int step = 20; step < 30; ++step) {
      const auto gradient = gradient_of(comm.rank(), step);
      const Update a = reducer.step(gradient);
      const Update b = restored.step(gradient);
      EXPECT_TRUE(std::equal(a.dense.begin(), a.dense.end(), b.dense.begin(), b.dense.end()));
    }
  });
}

TEST(ReducerAuto, what_was_sent_is_known_after_every_step) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, auto_options(boundless_hope()));
    for (int step = 0; step < kReviews; ++step) {
      const bool is_dense = reducer.step(gradient_of(comm.rank(), step)).is_dense();
      EXPECT_EQ(reducer.sent().empty(), is_dense) << "step " << step;
    }
  });
}

TEST(ReducerAuto, step_of_nothing_works) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 0, {});
    for (int step = 0; step < 3; ++step) EXPECT_EQ(reducer.step({}).size(), 0U);
  });
}

TEST(ReducerAuto, dense_and_sparse_buckets_join_to_a_sparse_update) {
  run_world("threads", 2, [](Communicator& comm) {
    ReducerOptions options = auto_options(slow_network());
    options.choice.overrides = Overrides::parse("dense:n<600; circulant");
    FusionOptions fusion;
    fusion.policy = FusionPolicy::tensor;
    BucketedReducer bucketed(comm, {1000, 500, 1500}, options, fusion);
    for (int step = 0; step < 3; ++step) {
      const Update update = bucketed.step(gradient_of(comm.rank(), step));
      EXPECT_FALSE(update.is_dense());
      std::size_t of_dense_bucket = 0;
      for (const Index i : update.sparse.idx) of_dense_bucket += i >= 1000 && i < 1500 ? 1 : 0;
      EXPECT_EQ(of_dense_bucket, 500U);
      EXPECT_LT(update.sparse.size(), 600U);
      EXPECT_TRUE(std::is_sorted(update.sparse.idx.begin(), update.sparse.idx.end()));
    }
  });
}

TEST(ReducerAuto, measures_anew_after_states_of_other_ranks_were_merged) {
  std::vector<Bytes> states = gather_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, n, {});
    reducer.step(gradient_of(comm.rank(), 0));
    return reducer.save();
  });
  run_world("threads", 2, [&](Communicator& comm) {
    Reducer reducer(comm, n, {});
    reducer.load_all(states);
    EXPECT_FALSE(state_of(reducer).tuner->is_calibrated());
    reducer.step(gradient_of(comm.rank(), 1));
    EXPECT_TRUE(state_of(reducer).tuner->is_calibrated());
  });
}

TEST(ReducerAuto, a_rank_alone_keeps_no_times) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, n, auto_options(slow_network()));
    for (int step = 0; step < 10; ++step) reducer.step(gradient_of(0, step));
    const std::size_t size = reducer.save().size();
    for (int step = 10; step < 40; ++step) reducer.step(gradient_of(0, step));
    EXPECT_EQ(reducer.save().size(), size);
  });
}

TEST(ReducerAuto, goes_back_to_an_earlier_choice) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n, auto_options(boundless_hope()));
    for (int step = 0; step < 10; ++step) reducer.step(gradient_of(comm.rank(), step));
    ReducerSnapshot snapshot;
    state_of(reducer).copy_to(snapshot);
    const Bytes before = reducer.save();
    for (int step = 10; step < 20; ++step) reducer.step(gradient_of(comm.rank(), step));
    ASSERT_EQ(state_of(reducer).allreduce->name(), "dense");
    state_of(reducer).go_back(snapshot);
    EXPECT_EQ(state_of(reducer).allreduce->name(), "circulant");
    EXPECT_EQ(reducer.save(), before);
  });
}

TEST(ReducerAuto, ranks_with_other_profiles_refuse_all) {
  run_world("threads", 3, [](Communicator& comm) {
    Profile profile = slow_network();
    if (comm.rank() == 2) profile.machine.alpha *= 2;
    Reducer reducer(comm, n, auto_options(profile));
    const std::string message = message_of([&] { reducer.step(gradient_of(comm.rank(), 0)); });
    EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
  });
}

TEST(ReducerAuto, a_profile_comes_before_the_first_step) {
  run_world("threads", 2, [](Communicator& comm) {
    ReducerOptions options = auto_options({});
    options.profile.reset();
    Reducer reducer(comm, n, options);
    state_of(reducer).use_profile(slow_processor());
    EXPECT_EQ(state_of(reducer).allreduce->name(), "dense");
    reducer.step(gradient_of(comm.rank(), 0));
    EXPECT_THROW(state_of(reducer).use_profile(slow_network()), UsageError);
  });
}

TEST(ReducerAuto, buckets_share_one_measurement) {
  run_world("threads", 2, [](Communicator& comm) {
    FusionOptions fusion;
    fusion.policy = FusionPolicy::tensor;
    BucketedReducer bucketed(comm, {1000, 500, 1500}, {}, fusion);
    for (int step = 0; step < 3; ++step) {
      const auto gradient = gradient_of(comm.rank(), step);
      const Update update = bucketed.step(gradient);
      EXPECT_FALSE(update.skipped);
    }
    const Machine& first = state_of(bucketed.reducer(0)).tuner->profile().machine;
    for (std::size_t b = 0; b < 3; ++b) {
      const Machine& machine = state_of(bucketed.reducer(b)).tuner->profile().machine;
      EXPECT_EQ(machine.alpha, first.alpha);
      EXPECT_EQ(machine.beta, first.beta);
      EXPECT_EQ(machine.gamma, first.gamma);
    }
  });
}

}  // namespace
}  // namespace oktopk::reducer_auto_test
