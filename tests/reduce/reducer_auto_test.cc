// SPDX-License-Identifier: Apache-2.0
// Preset auto: the reducer does what the chosen preset would do, changes it in the middle of a
// stream without losing anything, whatever rule the caller names, and all ranks agree.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "oktopk/reduce/bucketed_reducer.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

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
      CountingCommunicator counting(comm);
      Reducer reducer(counting, n, {});
      reducer.step(gradient_of(comm.rank(), 0));
      EXPECT_EQ(state_of(reducer).tuner->is_calibrated(), comm.size() > 1);
      EXPECT_EQ(reducer.metrics().measured_bytes > 0, comm.size() > 1);
      EXPECT_EQ(reducer.metrics().measured_bytes + reducer.metrics().wire_bytes, counting.traffic().bytes_sent);
      return to_string(state_of(reducer).tuner->choice().method);
    });
    for (const std::string& method : methods) EXPECT_EQ(method, methods[0]);
  }
}

// A run compares what it applied with what it was brought.
struct Book {
  std::string presets;  // in force, in their order
  ResidualKind rule = ResidualKind::none;
  double lost = 0;  // the sum over the indices of |brought - applied - unsent|
};

using MakeGradient = std::function<std::vector<float>(Index size, int rank, int step)>;

Book keep_book(int P, Index size, const ReducerOptions& options, int steps, const MakeGradient& make) {
  std::vector<Book> books(static_cast<std::size_t>(P));
  const auto balances = gather_world("threads", P, [&](Communicator& comm) {
    Reducer reducer(comm, size, options);
    Book& book = books[static_cast<std::size_t>(comm.rank())];
    Dense balance(size, 0.0);
    for (int step = 0; step < steps; ++step) {
      const auto gradient = make(size, comm.rank(), step);
      const std::string name(state_of(reducer).allreduce->name());
      if (!book.presets.ends_with(name)) book.presets += " " + name;
      balance = plus(balance, Dense(gradient.begin(), gradient.end()));
      reducer.step(gradient);
      if (comm.rank() == 0) balance = plus(balance, sum_applied(reducer), -1);
    }
    book.rule = state_of(reducer).allreduce->options().residual;
    std::vector<float> unsent(size);
    reducer.take_unsent(unsent);
    return plus(balance, Dense(unsent.begin(), unsent.end()), -1);
  });
  for (const Book& book : books) EXPECT_EQ(book.presets, books[0].presets);
  for (const double left : add_up(balances)) books[0].lost += std::abs(left);
  return books[0];
}

TEST(ReducerAuto, changes_its_choice_and_loses_no_mass) {
  for (const int P : {2, 3, 4}) {
    const auto make = [](Index, int rank, int step) { return gradient_of(rank, step); };
    const Book book = keep_book(P, n, auto_options(boundless_hope()), kReviews, make);
    EXPECT_NE(book.presets.find("circulant dense"), std::string::npos) << book.presets;
    EXPECT_EQ(book.lost, 0) << "P = " << P;
  }
}

// Ranks that share 40 large indices, in another order each: a tree prunes many partial sums whose
// index survives in another branch. Dyadic.
std::vector<float> hot_gradient(Index size, int rank, int step) {
  std::vector<float> gradient(size, 0.0F);
  for (int i = 0; i < 40; ++i)
    gradient[static_cast<std::size_t>(i)] = static_cast<float>((rank * 7 + i * 13 + step * 5) % 16 + 1) / 16;
  return gradient;
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

TEST(ReducerAuto, choice_of_gtopk_by_sender_keeps_loses_nothing) {
  const Book book = keep_book(32, 10000, where_gtopk_wins(), 4, hot_gradient);
  EXPECT_EQ(book.presets, " gtopk");
  EXPECT_EQ(book.rule, ResidualKind::holder_keeps);
  EXPECT_EQ(book.lost, 0);
}

// The law sees the loss where the caller names both: he gets what he asks for.
TEST(ReducerAuto, gtopk_by_name_keeps_the_rule_that_was_asked_for) {
  ReducerOptions options = where_gtopk_wins();
  options.preset = "gtopk";
  options.profile.reset();
  options.choice = {};
  const Book book = keep_book(5, 2000, options, 4, hot_gradient);
  EXPECT_EQ(book.rule, ResidualKind::sender_keeps);
  EXPECT_GT(book.lost, 0);
}

TEST(ReducerAuto, choice_of_any_preset_by_any_rule_loses_nothing) {
  for (const Preset& preset : presets())
    for (const ResidualKind rule : {ResidualKind::none, ResidualKind::sender_keeps, ResidualKind::all_sent_cleared,
                                    ResidualKind::holder_keeps, ResidualKind::owner_memory}) {
      ReducerOptions options = where_gtopk_wins();
      options.allreduce.residual = rule;
      options.choice.coarsest = ValueCoding::fp32;
      options.choice.overrides = Overrides::parse(preset.name);
      const Book book = keep_book(5, 1000, options, 4, hot_gradient);
      EXPECT_EQ(book.presets, " " + std::string(preset.name));
      EXPECT_EQ(book.lost, 0) << preset.name << ", " << to_string(rule);
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

TEST(ReducerAuto, dense_and_sparse_buckets_join_to_a_sparse_update) {
  run_world("threads", 2, [](Communicator& comm) {
    ReducerOptions options = auto_options(slow_network());
    options.choice.overrides = Overrides::parse("dense:n<600; circulant");
    FusionOptions fusion;
    fusion.policy = FusionPolicy::tensor;
    BucketedReducer bucketed(comm, {500, 1000, 1500}, options, fusion);
    for (int step = 0; step < 3; ++step) {
      const Update update = bucketed.step(gradient_of(comm.rank(), step));
      EXPECT_FALSE(update.is_dense());
      std::size_t of_dense_bucket = 0;
      for (const Index i : update.sparse.idx) of_dense_bucket += i < 500 ? 1 : 0;
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
    CountingCommunicator counting(comm);
    BucketedReducer bucketed(counting, {1000, 500, 1500}, {}, fusion);
    for (int step = 0; step < 3; ++step) {
      const auto gradient = gradient_of(comm.rank(), step);
      counting.reset();
      const Update update = bucketed.step(gradient);
      EXPECT_FALSE(update.skipped);
      const StepMetrics metrics = bucketed.metrics();
      EXPECT_EQ(metrics.measured_bytes > 0, step == 0);
      EXPECT_EQ(metrics.measured_bytes + metrics.wire_bytes, counting.traffic().bytes_sent);
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
