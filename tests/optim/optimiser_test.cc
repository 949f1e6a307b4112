// SPDX-License-Identifier: Apache-2.0
// Properties of every optimiser: ranks agree bitwise with every preset and residual rule, it learns, a step that is
// refused or skipped leaves no trace, a saved state continues bitwise, and on other ranks. One clipping factor for all
// ranks bounds the norm of the mean gradient.
#include "oktopk/optim/optimiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oktopk/base/error.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "tests/support/message.h"
#include "tests/support/optimisers.h"
#include "tests/support/runs.h"

namespace oktopk::optimiser_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Index kSize = 120;

Weights gaussian(int rank, int step) {
  return make_input(Input::gaussian, kSize, rank, static_cast<std::uint64_t>(step), 5);
}

ReducerOptions sparse_options(const std::string& preset = "circulant") {
  ReducerOptions options = preset_options(preset, 8);
  options.allreduce.tau_prime = 4;
  options.warmup = dense_warmup(3);
  return only_used(options);
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

class OptimiserOfKind : public testing::TestWithParam<OptimiserKind> {};

TEST_P(OptimiserOfKind, step_leaves_equal_weights_on_all_ranks_with_every_preset) {
  for (const Preset& preset : presets())
    for (const ResidualKind rule : preset.residuals) {
      Training training{.P = 3, .n = kSize, .steps = 50};
      training.reducer = sparse_options(std::string(preset.name));
      training.reducer.allreduce.residual = rule;
      const auto weights = train(training, GetParam(), gaussian);
      EXPECT_NE(weights[0], first_weights(kSize)) << preset.name;
      for (const Weights& w : weights) EXPECT_EQ(w, weights[0]) << preset.name << ", " << to_string(rule);
    }
}

TEST_P(OptimiserOfKind, step_works_tensor_by_tensor) {
  const auto weights = gather_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions options = preset_options("circulant", 0);
    options.density = 0.1;
    options.warmup = dense_warmup(2);
    BucketedReducer reducer(comm, {50, 10, 60}, options);
    const auto optimiser = GetParam().make(reducer);
    Weights mine = first_weights(kSize);
    for (int step = 0; step < 8; ++step) optimiser->step(mine, gaussian(comm.rank(), step));
    const Bytes state = optimiser->save();
    optimiser->flush(mine);
    EXPECT_EQ(reducer.unsent_norm(), 0);
    optimiser->load(state);
    EXPECT_TRUE(optimiser->save() == state);
    return mine;
  });
  EXPECT_NE(weights[0], first_weights(kSize));
  for (const Weights& w : weights) EXPECT_EQ(w, weights[0]);
}

// Rank r's loss: the squared distance to a target of its own, with curvatures from 1 to 2.
TEST_P(OptimiserOfKind, step_after_step_finds_the_minimum_of_a_quadratic) {
  constexpr int kRanks = 5;
  const Weights start = first_weights(kSize);
  const auto target = [](int rank, std::size_t i) {
    return 0.1F * static_cast<float>(rank - 2) + static_cast<float>(i % 5) / 5;
  };
  const auto curvature = [](std::size_t i) { return 1 + static_cast<float>(i % 3) / 2; };
  run_world("threads", kRanks, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, preset_options("circulant", 24));
    const auto optimiser = GetParam().make(reducer);
    const float rate = optimiser->learning_rate();
    Weights weights = start;
    Weights gradient(kSize);
    for (int step = 0; step < 300; ++step) {
      optimiser->set_learning_rate(rate * static_cast<float>(300 - step) / 300);
      const auto at = optimiser->point(weights);
      for (std::size_t i = 0; i < kSize; ++i) gradient[i] = curvature(i) * (at[i] - target(comm.rank(), i));
      optimiser->step(weights, gradient);
    }
    optimiser->flush(weights);
    Weights minimum(kSize);
    for (std::size_t i = 0; i < kSize; ++i) minimum[i] = target(2, i);
    EXPECT_LT(distance(weights, minimum), 0.05 * distance(start, minimum));
  });
}

TEST_P(OptimiserOfKind, step_skipped_or_refused_changes_nothing) {
  for (const NanPolicy policy : {NanPolicy::skip, NanPolicy::error})
    run_world("threads", 3, [&](Communicator& comm) {
      ReducerOptions options = sparse_options();
      options.nan_policy = policy;
      Reducer reducer(comm, kSize, options);
      const auto optimiser = GetParam().make(reducer);
      Weights weights = first_weights(kSize);
      for (int step = 0; step < 6; ++step) optimiser->step(weights, gaussian(comm.rank(), step));
      const Bytes state = optimiser->save();
      const Weights before = weights;
      for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
        Weights gradient = gaussian(comm.rank(), 6);
        if (comm.rank() == 1) gradient[3] = bad;
        bool skipped = false;
        const std::string message = message_of([&] { skipped = optimiser->step(weights, gradient).skipped; });
        EXPECT_EQ(skipped, policy == NanPolicy::skip);
        EXPECT_TRUE(says(message, skipped ? "accepted" : "rank 1: gradient[3]")) << message;
      }
      const Weights gradient(comm.rank() == 2 ? kSize - 1 : kSize, 1.0F);
      EXPECT_TRUE(says(message_of([&] { optimiser->step(weights, gradient); }), "rank 2"));
      EXPECT_TRUE(optimiser->save() == state);
      EXPECT_EQ(weights, before);
    });
}

// A learning rate of its own in each step, so that schedules are part of the state.
void train_on(Optimiser& optimiser, Weights& weights, int begin, int end) {
  const int rank = optimiser.synchroniser().comm().rank();
  for (int step = begin; step < end; ++step) {
    optimiser.set_learning_rate(0.1F / static_cast<float>(step + 1));
    optimiser.step(weights, gaussian(rank, step));
  }
}

TEST_P(OptimiserOfKind, load_continues_bitwise) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    const auto optimiser = GetParam().make(reducer);
    Weights weights = first_weights(kSize);
    train_on(*optimiser, weights, 0, 11);
    const Bytes state = optimiser->save();
    Weights saved = weights;

    Reducer other_reducer(comm, kSize, sparse_options());
    const auto other = GetParam().make(other_reducer);
    other->load(state);
    EXPECT_EQ(other->learning_rate(), optimiser->learning_rate());
    EXPECT_TRUE(other->save() == state);
    for (const auto& [one, its] : {std::pair(optimiser.get(), &weights), {other.get(), &saved}}) {
      one->step(*its, gaussian(comm.rank(), 11));  // with the learning rate that was saved
      train_on(*one, *its, 12, 20);
      one->flush(*its);
    }
    EXPECT_EQ(saved, weights);
    EXPECT_TRUE(other->save() == optimiser->save());
  });
}

TEST_P(OptimiserOfKind, load_of_what_one_rank_cannot_read_changes_nothing) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    const auto optimiser = GetParam().make(reducer);
    Weights weights = first_weights(kSize);
    train_on(*optimiser, weights, 0, 5);
    const Bytes earlier = optimiser->save();
    train_on(*optimiser, weights, 5, 8);
    const Bytes now = optimiser->save();
    const auto refusal = [&](const Bytes& state) {
      const std::string message = message_of([&] { optimiser->load(state); });
      EXPECT_TRUE(optimiser->save() == now);
      return message;
    };
    Bytes damaged = earlier;
    if (comm.rank() == 1) damaged[damaged.size() / 2] ^= std::byte{4};
    EXPECT_TRUE(says(refusal(damaged), "rank 1: state: damaged"));
    Bytes cut = earlier;
    if (comm.rank() == 2) cut.resize(cut.size() - 1);
    EXPECT_TRUE(says(refusal(cut), "rank 2"));

    ReducerOptions other_options = sparse_options();
    other_options.k = 9;
    Reducer other_reducer(comm, kSize, other_options);
    const auto other = GetParam().make(other_reducer);
    EXPECT_TRUE(says(refusal(other->save()), "saved with"));
    SparseSGD alien(reducer, {.momentum = 0.123F});
    EXPECT_TRUE(says(refusal(comm.rank() == 0 ? alien.save() : earlier), "rank 0"));
    EXPECT_EQ(refusal(now), "accepted");
  });
}

TEST_P(OptimiserOfKind, step_without_gradient_is_a_step_with_zeros) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    Reducer other_reducer(comm, kSize, sparse_options());
    const auto with_zeros = GetParam().make(reducer);
    const auto without = GetParam().make(other_reducer);
    Weights a = first_weights(kSize);
    Weights b = a;
    for (int step = 0; step < 8; ++step) {
      const bool idle = comm.rank() == 1 && step % 2 == 1;
      const Weights gradient = gaussian(comm.rank(), step);
      with_zeros->step(a, idle ? Weights(kSize, 0.0F) : gradient);
      without->step(b, idle ? Weights() : gradient);
    }
    EXPECT_EQ(a, b);
  });
}

// No gradient differs, so the weights differ only by the order of the sums that share out unsent values.
TEST_P(OptimiserOfKind, load_all_continues_on_any_number_of_ranks) {
  struct Saved {
    Bytes state;
    Weights weights, flushed;
  };
  const auto saved = gather_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    const auto optimiser = GetParam().make(reducer);
    Weights weights = first_weights(kSize);
    train_on(*optimiser, weights, 0, 20);
    Saved mine{optimiser->save(), weights, weights};
    optimiser->flush(mine.flushed);
    optimiser->catch_up(mine.flushed);
    return mine;
  });
  std::vector<Bytes> states;
  for (const Saved& rank : saved) states.push_back(rank.state);
  for (const int P : {1, 2, 5}) {
    const auto continued = gather_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, kSize, sparse_options());
      const auto optimiser = GetParam().make(reducer);
      optimiser->load_all(states.size(), [&](std::size_t i) { return std::span<const std::byte>(states[i]); });
      Weights weights = saved[0].weights, flushed = weights;
      train_on(*optimiser, weights, 20, 30);
      optimiser->load_all(states.size(), [&](std::size_t i) { return std::span<const std::byte>(states[i]); });
      optimiser->flush(flushed);
      optimiser->catch_up(flushed);
      EXPECT_LT(distance(flushed, saved[0].flushed), 1e-4 * distance(saved[0].flushed, first_weights(kSize)));
      return weights;
    });
    for (const Weights& weights : continued) EXPECT_EQ(weights, continued[0]) << P;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimiserOfKind, testing::ValuesIn(optimiser_kinds()),
                         [](const auto& kind) { return kind.param.name; });

TEST(Optimiser, lazy_kinds_touch_only_what_arrives) {
  for (const OptimiserKind& kind : optimiser_kinds()) {
    if (kind.name != "sgd" && kind.name != "sgd_momentum" && kind.name != "adam_interval_aware") continue;
    run_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, kSize, preset_options("oktopk", 8));
      const auto optimiser = kind.make(reducer);
      const Weights start = first_weights(kSize);
      for (int step = 0; step < 5; ++step) {
        Weights weights = start;
        std::vector<bool> arrived(kSize);
        optimiser->step(weights, gaussian(comm.rank(), step)).for_each([&](Index i, float) { arrived[i] = true; });
        for (std::size_t i = 0; i < kSize; ++i) EXPECT_EQ(weights[i] != start[i], arrived[i]) << kind.name << ", " << i;
      }
    });
  }
}

TEST(Optimiser, point_with_look_ahead_is_past_what_is_unsent) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, 4, preset_options("topka", 1));
    SparseSGD plain(reducer, {});
    SparseSGD ahead(reducer, {.learning_rate = 0.5F, .look_ahead = true});
    Weights weights = {1, 1, 1, 1};
    EXPECT_EQ(plain.point(weights).data(), weights.data());
    const auto r = static_cast<float>(comm.rank());
    ahead.step(weights, Weights{8, r, 0.5F, 0});
    EXPECT_EQ(weights, (Weights{-3, 1, 1, 1}));
    const auto point = ahead.point(weights);
    EXPECT_EQ(Weights(point.begin(), point.end()), (Weights{-3, 1 - r / 2, 0.75F, 1}));
  });
}

TEST(Optimiser, apply_is_for_callers_who_synchronise) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    Reducer other_reducer(comm, kSize, sparse_options());
    SparseAdamW whole(reducer, {});
    SparseAdamW half(other_reducer, {});
    Weights a = first_weights(kSize);
    Weights b = a;
    for (int step = 0; step < 8; ++step) {
      whole.step(a, gaussian(comm.rank(), step));
      half.apply(b, other_reducer.step(gaussian(comm.rank(), step), half.scale()));
    }
    half.apply(b, {.skipped = true});
    EXPECT_EQ(a, b);
    SparseSGD updates(reducer, {.sparsify = Sparsify::updates});
    EXPECT_TRUE(says(message_of([&] { updates.apply(a, {}); }), "updates"));
  });
}

TEST(Optimiser, step_with_different_options_is_refused_on_all_ranks) {
  run_world("threads", 3, [](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    Weights weights = first_weights(kSize);
    SparseSGD rates(reducer, {.learning_rate = comm.rank() == 1 ? 0.1F : 0.2F});
    SparseSGD momenta(reducer, {.momentum = comm.rank() == 2 ? 0.9F : 0.8F});
    for (Optimiser* optimiser : {&rates, &momenta})
      EXPECT_TRUE(says(message_of([&] { optimiser->step(weights, Weights(kSize)); }), "optimiser: rank "));
    EXPECT_EQ(weights, first_weights(kSize));
  });
}

TEST(Optimiser, arguments_that_make_no_sense_are_refused) {
  run_world("threads", 1, [](Communicator& comm) {
    Reducer reducer(comm, kSize, sparse_options());
    Weights few(kSize - 1);
    SparseSGD sgd(reducer, {});
    EXPECT_TRUE(says(message_of([&] { sgd.step(few, Weights(kSize)); }), "119 weights"));
    EXPECT_TRUE(says(message_of([&] { sgd.point(few); }), "119 weights"));
    EXPECT_TRUE(says(message_of([&] { sgd.flush(few); }), "119 weights"));
    EXPECT_TRUE(says(message_of([&] { sgd.apply(few, {}); }), "119 weights"));
    for (const float rate : {-1.0F, kNan, std::numeric_limits<float>::infinity()}) {
      EXPECT_TRUE(says(message_of([&] { sgd.set_learning_rate(rate); }), "learning_rate = "));
      EXPECT_TRUE(says(message_of([&] { SparseSGD(reducer, {.learning_rate = rate}); }), "rate"));
      EXPECT_TRUE(says(message_of([&] { SparseSGD(reducer, {.clip_norm = rate}); }), "clip_norm"));
    }
    const auto expect = [&](const auto& options, const std::string& part) {
      const std::string message = message_of([&] { kind_of("", options).make(reducer); });
      EXPECT_TRUE(says(message, part)) << message;
    };
    expect(SgdOptions{.momentum = 1}, "momentum = 1");
    expect(SgdOptions{.momentum = -0.5F}, "momentum = -0.5");
    expect(SgdOptions{.momentum = kNan}, "momentum = ");
    expect(SgdOptions{.nesterov = true}, "nesterov");
    expect(SgdOptions{.weight_decay = -1}, "weight_decay = -1");
    expect(SgdOptions{.momentum = 0.9F, .factor_masking = true}, "factor_masking");
    expect(SgdOptions{.sparsify = Sparsify::updates, .factor_masking = true}, "factor_masking");
    expect(AdamOptions{.beta1 = 1}, "beta1 = 1");
    expect(AdamOptions{.beta2 = -0.5F}, "beta2 = -0.5");
    expect(AdamOptions{.epsilon = 0}, "epsilon = 0");
    expect(AdamOptions{.weight_decay = -1}, "weight_decay = -1");
    expect(AdamOptions{.learning_rate = 0.5F, .weight_decay = 2}, "less than 1");
    expect(AdamOptions{.look_ahead = true}, "look_ahead");
    EXPECT_EQ(find_adam_mode("published"), AdamMode::published);
    EXPECT_TRUE(says(message_of([] { find_adam_mode("lazy"); }), "interval_aware"));
    EXPECT_EQ(find_sparsify("updates"), Sparsify::updates);
    EXPECT_EQ(to_string(Sparsify::gradients), "gradients");
    EXPECT_TRUE(says(message_of([] { find_sparsify("all"); }), "gradients, updates"));
  });
}

// ---- clip_factor() ----

std::vector<float> factors(int P, float clip_norm, const std::function<std::vector<float>(int rank)>& gradient) {
  return gather_world("threads", P,
                      [&](Communicator& comm) { return clip_factor(comm, gradient(comm.rank()), clip_norm); });
}

TEST(ClipFactor, of_one_rank_is_the_usual_one) {
  run_world("threads", 1, [](Communicator& comm) {
    const Weights x = {3, 0, -4}, zeros(5);
    for (const auto& [norm, factor] : {std::pair{2.5F, 0.5F}, {5.0F, 1.0F}, {6.0F, 1.0F}})
      EXPECT_EQ(clip_factor(comm, x, norm), factor);
    EXPECT_EQ(clip_factor(comm, std::vector<Bf16>{to_bf16(3), to_bf16(0), to_bf16(-4)}, 2.5F), 0.5F);
    EXPECT_EQ(clip_factor(comm, Weights(), 1), 1);
    EXPECT_EQ(clip_factor(comm, zeros, 1), 1);
    for (const float norm : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), kNan})
      EXPECT_THROW(clip_factor(comm, x, norm), UsageError) << norm;
  });
}

TEST(ClipFactor, is_equal_on_all_ranks_and_bounds_the_mean) {
  constexpr Index n = 50;
  const auto gradient = [](int rank) { return make_input(Input::gaussian, n, rank, 0, 3); };
  for (const int P : {3, 5}) {
    const auto all = factors(P, 0.25F, gradient);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0;
      for (int r = 0; r < P; ++r) mean += double{all[0]} * gradient(r)[i] / P;
      squares += mean * mean;
    }
    EXPECT_LE(std::sqrt(squares), 0.25 * (1 + 1e-6));
    for (const float factor : all) EXPECT_EQ(factor, all[0]);
  }
}

TEST(ClipFactor, is_the_root_mean_square_of_the_norms) {
  const auto gradient = [](int rank) { return std::vector<float>(4, rank == 2 ? 3.0F : 0.0F); };
  for (const float factor : factors(3, 1, gradient)) EXPECT_FLOAT_EQ(factor, 1 / std::sqrt(36.0F / 3));
}

TEST(ClipFactor, is_one_when_a_rank_is_not_finite) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()})
    for (const float factor :
         factors(3, 1e-3F, [&](int rank) { return std::vector<float>(2, rank == 1 ? bad : 7.0F); }))
      EXPECT_EQ(factor, 1);
}

}  // namespace
}  // namespace oktopk::optimiser_test
