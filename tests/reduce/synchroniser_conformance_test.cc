// SPDX-License-Identifier: Apache-2.0
// The laws of every synchroniser with every method, on odd numbers of ranks and uneven nodes too. Mass, the mean and
// agreement; steps in two halves; states that go on bit by bit, or on other ranks. Refusals: refusals_test.cc.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>

#include "oktopk/comm/collectives.h"
#include "oktopk/laws/faults.h"
#include "tests/device/hidden_device.h"
#include "tests/reduce/conformance.h"

namespace oktopk::synchroniser_conformance_test {
namespace {

using namespace conformance;  // NOLINT(google-build-using-namespace)

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class StepLaws : public testing::TestWithParam<Case> {};

void expect_unsent_is_that_of_the_parts(const Tested& tested) {
  const Dense residual = residual_of(tested);
  const Dense memory = memory_of(tested);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) squares += residual[i] * residual[i] + memory[i] * memory[i];
  EXPECT_NEAR(tested->unsent_norm(), std::sqrt(squares), 1e-12);
  std::vector<float> x(n, 1.0F);
  tested->subtract_unsent(x);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(x[i], 1.0F - static_cast<float>(residual[i]));
}

// In every step: what was applied so far + residuals + owner memory is what was brought. Sums of dyadic values are
// exact: gaussian is not dyadic. k changes up, down and to all, and thresholds of another k must not do harm; two
// flushes apply everything.
TEST_P(StepLaws, step_gives_all_ranks_the_mean_and_loses_no_mass) {
  for (const int P : {1, 3, 4, 5, 7})
    for (const Input input : {Input::dyadic, Input::skewed, Input::gaussian})
      run_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = GetParam().method.options(k);
        options.warmup = {{1, 0.25}, {1, 0.0625}, {1, 1}, {1, 0.0025}, {1, 0.5}};
        const Tested tested = GetParam().kind.make(comm, only_used(options));
        Dense brought(n, 0.0);
        Dense applied(n, 0.0);
        std::uint64_t bits = 0;
        for (std::uint64_t step = 0; step < 14; ++step) {
          const bool flushes = step == 9 || step == 13;
          const auto gradient = gradient_of(comm, step, input);
          const Update update = flushes ? tested->flush() : tested->step(gradient, 0.5F);
          if (!flushes) brought = plus(brought, Dense(gradient.begin(), gradient.end()), 0.5);
          bits = fold(bits, update);
          const Dense sum = applied_by(tested);
          applied = plus(applied, sum);
          const Dense total = plus(owed_by_all(comm, tested), applied);
          if (comm.rank() == 0)
            update.for_each(
                [&](Index i, float mean) { ASSERT_EQ(mean, static_cast<float>(sum[i]) / static_cast<float>(P)); });
          const Dense all_brought = add_up(gather_dense(comm, brought));
          if (comm.rank() == 0 && input != Input::gaussian) {
            ASSERT_EQ(total, all_brought) << "P = " << P << ", step " << step;
          }
          expect_unsent_is_that_of_the_parts(tested);
          if (flushes) {
            EXPECT_TRUE(update.is_dense());
            EXPECT_EQ(tested->unsent_norm(), 0);
          }
        }
        EXPECT_TRUE(is_same_on_all(comm, bits)) << "P = " << P;
        EXPECT_EQ(tested.steps(), 12U);
      });
}

// Finite, but taking it back by arithmetic would lose the residuals.
std::vector<float> exploded(std::vector<float> gradient) {
  for (float& x : gradient) x *= 1e30F;
  return gradient;
}

TEST_P(StepLaws, step_with_policy_skip_is_left_out_on_every_rank) {
  for (const int P : {1, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      ReducerOptions options = staged_options(GetParam().method);
      options.nan_policy = NanPolicy::skip;
      const Tested tested = GetParam().kind.make(comm, options);
      const Tested twin = GetParam().kind.make(comm, options);
      for (std::uint64_t step = 0; step < 6; ++step) {
        const Bytes before = tested->save();
        const bool is_last = comm.rank() == P - 1;
        const auto usual = gradient_of(comm, 99);
        for (const auto& [place, bad] : {std::pair{Index{7}, kNan}, {Index{150}, kNan}, {n - 1, kInf}}) {
          auto gradient = exploded(usual);
          if (is_last) gradient[place] = bad;
          const Update update = tested->step(gradient);
          EXPECT_TRUE(update.skipped);
          EXPECT_EQ(update.size(), 0U);
          EXPECT_TRUE(tested->sent().empty());
        }
        EXPECT_THROW(tested->step(std::span(usual).first(is_last ? n - 1 : n)), UsageError);
        EXPECT_THROW(tested->step(usual, is_last ? kInf : 1), UsageError);
        ASSERT_EQ(tested->save(), before);
        EXPECT_EQ(tested.steps(), step);
        const auto gradient = gradient_of(comm, step);
        ASSERT_EQ(result_of(tested->step(gradient)), result_of(twin->step(gradient)));
      }
    });
}

// Others notice that the rank is gone. Nobody may take what is left of its residual for a state.
TEST_P(StepLaws, nan_with_policy_local_is_that_ranks_error_and_ends_the_world) {
  const std::string& kind = GetParam().kind.name;
  if (kind == "elastic") GTEST_SKIP() << "members repair a failure";
  for (const auto& [culprit, place] : {std::pair{0, 250}, {1, 150}, {4, 20}}) {  // in each bucket
    std::barrier all_stepped(5);                                                 // nobody is in the first step any more
    run_world("threads", 5, [&](Communicator& comm) {
      ReducerOptions options = GetParam().method.options(k);
      options.nan_policy = NanPolicy::local;
      Tested tested = GetParam().kind.make(comm, options);
      auto gradient = gradient_of(comm, 0);
      tested->step(gradient);
      all_stepped.arrive_and_wait();
      if (comm.rank() == culprit) {
        gradient[static_cast<std::size_t>(place)] = kNan;
        EXPECT_NE(message_of([&] { tested->step(gradient); }).find("gradient["), std::string::npos);
        if (kind != "buckets") {
          EXPECT_THROW(tested->save(), UsageError);
        }
      } else {
        EXPECT_THROW(tested->step(gradient), CommError);
      }
      EXPECT_THROW(tested->step(gradient), CommError);
      if (tested.forget()) {
        EXPECT_NO_THROW(tested->save());
      }
    });
  }
}

TEST_P(StepLaws, forget_drops_what_was_not_applied) {
  run_world("threads", 3, [&](Communicator& comm) {
    Tested tested = GetParam().make(comm);
    tested->step(gradient_of(comm, 0));
    if (tested.forget()) tested->step({}).for_each([](Index, float mean) { EXPECT_EQ(mean, 0); });
  });
}

INSTANTIATE_TEST_SUITE_P(Synchronisers, StepLaws, testing::ValuesIn(all_cases()), case_name);

// Steps in two halves, which the Reducer makes.
class TentativeLaws : public testing::TestWithParam<Case> {
 protected:
  const ReducerOptions staged = staged_options(GetParam().method);
};

// All that is of length n goes through the device, whose memory the host cannot read: a GPU could make these steps.
TEST_P(TentativeLaws, step_that_was_taken_back_twice_equals_a_plain_step_bit_by_bit) {
  ReducerOptions options = staged;
  options.decay = 0.75F;
  options.adaptive = {.target_share = 0.9, .budget = 0.1, .interval = 3};
  options = only_used(options);
  for (const int P : {1, 2, 3, 5})
    run_world("threads", P, [&](Communicator& comm) {
      Reducer plain(comm, n, options);
      ReducerOptions hidden = options;
      hidden.device = std::make_shared<HiddenDevice>(/*is_strict=*/false);  // gradients lie in host memory
      Reducer tentative(comm, n, P == 5 ? hidden : options);
      const std::uint64_t steps = P == 3 ? 80 : 24;
      for (std::uint64_t step = 0; step < steps; ++step) {
        const auto gradient = gradient_of(comm, step, step % 2 == 0 ? Input::gaussian : Input::skewed);
        const Result expected = result_of(plain.step(gradient));
        for (const bool is_last : {false, false, true}) {
          // The gradient is not added twice, so the last retry may leave it out.
          ASSERT_EQ(result_of(tentative.propose(is_last ? Gradient() : Gradient(gradient))), expected);
          is_last ? tentative.commit() : tentative.roll_back();
        }
        ASSERT_EQ(tentative.save(), plain.save()) << "step " << step << ", P = " << P;
        ASSERT_EQ(tentative.steps(), step + 1);
        ASSERT_EQ(list_of(tentative.sent()), list_of(plain.sent()));
      }
      const Result expected = result_of(plain.flush());
      ASSERT_EQ(result_of(tentative.propose_flush()), expected);
      tentative.roll_back();
      ASSERT_EQ(result_of(tentative.propose_flush()), expected);
      tentative.commit();
      EXPECT_EQ(tentative.save(), plain.save());
      tentative.propose_flush();
      tentative.roll_back();
      tentative.propose(gradient_of(comm, steps));
      tentative.commit();
      EXPECT_EQ(tentative.steps(), steps + 1) << "no flush, but a step";
    });
}

// After a roll-back: the accumulator is that of `before` and the gradient, and all else is as in `before`. Where the
// proposal failed, it may have done so before the gradient was added.
void expect_only_begun(const Reducer& rolled_back, const Reducer& before, std::span<const float> gradient,
                       bool failed) {
  ASSERT_EQ(rest_of(rolled_back), rest_of(before));
  const std::vector<float> unchanged = accumulator_of(before);
  std::vector<float> expected = unchanged;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradient[i];
  const std::vector<float> now = accumulator_of(rolled_back);
  ASSERT_TRUE(now == expected || (failed && now == unchanged));
}

// A rank dies at each of its messages, or nobody does. All roll back: they have their accumulators, with or without the
// gradient, and all else as it was; and what they save can be loaded.
TEST_P(TentativeLaws, failure_at_any_message_can_be_taken_back) {
  for (const int victim : {1, 2}) {
    bool struck = true;
    for (std::uint64_t at = 0; struck && at < 200; at += at < 6 ? 1 : 3) {
      SCOPED_TRACE(text_of("message ", at, " of rank ", victim));
      run_world("threads", 3, [&](Communicator& world) {
        const auto steady = world.split(0, world.rank());
        const auto doomed = world.split(0, world.rank());
        FaultyCommunicator faulty(*doomed, {});
        Reducer spared(*steady, n, GetParam().method.options(k));
        Reducer hit(faulty, n, GetParam().method.options(k));
        for (std::uint64_t step = 0; step < 3; ++step) {
          spared.step(dyadic_of(world, step));
          hit.step(dyadic_of(world, step));
        }
        barrier(world);  // nobody is in an earlier step when the rank dies
        if (world.rank() == victim) faulty.die_at(at);
        const auto gradient = dyadic_of(world, 3);
        const bool failed = message_of<CommError>([&] { hit.propose(gradient); }) != "accepted";
        if (world.rank() == victim) struck = faulty.has_struck();
        ASSERT_TRUE(hit.is_open());
        hit.roll_back();
        expect_only_begun(hit, spared, gradient, failed);
        EXPECT_EQ(hit.steps(), 3U);
        const auto owed = sum_unsent(hit, world);
        spared.load(hit.save());
        EXPECT_EQ(sum_unsent(spared, world), owed);
        EXPECT_TRUE(is_same_on_all(world, fold(0, spared.step(gradient))));
      });
      if (HasFailure()) return;
    }
    EXPECT_FALSE(struck) << "a step has fewer messages than this";
  }
}

TEST_P(TentativeLaws, unfit_proposal_changes_nothing_and_leaves_nothing_open) {
  for (const NanPolicy policy : {NanPolicy::error, NanPolicy::skip})
    for (const bool is_retry : {false, true})
      run_world("threads", 3, [&](Communicator& comm) {
        ReducerOptions options = GetParam().method.options(k);
        options.nan_policy = policy;
        Reducer plain(comm, n, options);
        Reducer tentative(comm, n, options);
        for (Reducer* reducer : {&plain, &tentative})
          for (std::uint64_t step = 0; step < 3; ++step) reducer->step(gradient_of(comm, step));
        const auto good = gradient_of(comm, 3);
        if (is_retry) {
          tentative.propose(good);
          tentative.roll_back();
        }
        const Bytes before = tentative.save();
        auto bad = gradient_of(comm, 99);
        if (comm.rank() == 2) bad[20] = kNan;
        if (policy == NanPolicy::error) {
          EXPECT_THROW(tentative.propose(bad), UsageError);
        } else {
          EXPECT_TRUE(tentative.propose(bad).skipped);
          is_retry ? tentative.roll_back() : tentative.commit();
        }
        EXPECT_FALSE(tentative.is_open());
        ASSERT_EQ(tentative.save(), before);
        const Result expected = result_of(plain.step(good));
        ASSERT_EQ(result_of(tentative.propose(good)), expected);
        tentative.commit();
        EXPECT_EQ(tentative.save(), plain.save());
      });
}

TEST_P(TentativeLaws, calls_in_the_wrong_order_are_refused) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, GetParam().method.options(k));
    const auto gradient = gradient_of(comm, 0);
    EXPECT_THROW(reducer.commit(), UsageError);
    EXPECT_THROW(reducer.roll_back(), UsageError);
    const Bytes state = reducer.save();
    reducer.propose(gradient);
    EXPECT_THROW(reducer.propose(gradient), UsageError);
    EXPECT_THROW(reducer.propose_flush(), UsageError);
    EXPECT_THROW(reducer.step(gradient), UsageError);
    EXPECT_THROW(reducer.flush(), UsageError);
    EXPECT_THROW(reducer.save(), UsageError);
    EXPECT_THROW(reducer.load(state), UsageError);
    EXPECT_THROW(reducer.load_all(std::vector<Bytes>(3, state)), UsageError);
    EXPECT_THROW(reducer.forget(), UsageError);
    EXPECT_THROW(reducer.moved_to(comm), UsageError);
    reducer.roll_back();
    EXPECT_THROW(reducer.roll_back(), UsageError);
    EXPECT_THROW(reducer.propose_flush(), UsageError) << "the retry comes first, on all ranks";
    reducer.propose(gradient);
    reducer.commit();
    EXPECT_THROW(reducer.commit(), UsageError);
    EXPECT_EQ(reducer.steps(), 1U);
    EXPECT_THROW(reducer.propose(std::vector<float>(n + 1)), UsageError);
    EXPECT_FALSE(reducer.is_open());
    reducer.step(gradient);
  });
}

TEST_P(TentativeLaws, moved_reducer_keeps_mass_and_place) {
  run_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, GetParam().method.options(k));
    for (std::uint64_t step = 0; step < 4; ++step) reducer.step(dyadic_of(comm, step));
    const Dense owed = sum_unsent(reducer, comm);
    const auto other = comm.split(0, comm.rank());
    const auto moved = reducer.moved_to(*other);
    EXPECT_EQ(moved->steps(), 4U);
    EXPECT_EQ(sum_unsent(*moved, comm), owed);
    EXPECT_EQ(reducer.unsent_norm(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Reducers, TentativeLaws, testing::ValuesIn(reducer_cases()), case_name);

class StateLaws : public testing::TestWithParam<Case> {};

// The mass moves to the other end after a while, so that cuts change long after the start.
std::vector<float> wandering(const Communicator& comm, std::uint64_t step) {
  auto gradient = gradient_of(comm, step, step % 2 == 0 ? Input::skewed : Input::gaussian);
  if (step >= 10) std::reverse(gradient.begin(), gradient.end());
  return gradient;
}

Range region_of(const Tested& tested) {
  return tested.parts().empty() ? Range{} : state_of(tested.parts().front().reducer).unsent.memory().region;
}

// Dense steps, steps of another k, a flush before step 10, changes of cuts.
TEST_P(StateLaws, resumed_run_is_the_uninterrupted_one_bit_by_bit) {
  constexpr std::uint64_t kSteps = 24;
  for (const int P : {1, 3, 4})
    for (const char* codec : {"coo32+fp32", "elias_fano+log8"})
      run_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = GetParam().method.options(k);
        options.allreduce.codec = parse_codec(codec);
        options.warmup = {{2, 1}, {2, 0.2}};
        options.decay = 0.75F;
        if (codec == std::string("elias_fano+log8")) {
          options.adaptive = {.target_share = 0.9, .budget = 0.1, .interval = 3};
          options.allreduce.thresholds = P == 3 ? ThresholdRule::paper : ThresholdRule::published;
        }
        options = only_used(options);
        const Tested whole = GetParam().kind.make(comm, options);
        std::vector<Bytes> states;
        std::vector<Result> results;
        const auto make_step = [&](const Tested& tested, std::uint64_t step) {
          if (step == 10) tested->flush();
          return result_of(tested->step(wandering(comm, step)));
        };
        bool has_moved = false;
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          states.push_back(whole->save());
          const Index begin = region_of(whole).begin;
          results.push_back(make_step(whole, step));
          has_moved = has_moved || (step > 10 && region_of(whole).begin != begin);
        }
        if (GetParam().method.preset == "circulant" && GetParam().kind.name == "reducer" && P == 3) {
          EXPECT_NE(add_up(gather_dense(comm, {has_moved ? 1.0 : 0.0})), Dense{0}) << "cuts must change";
        }
        states.push_back(whole->save());
        for (const std::uint64_t pause : {0, 1, 2, 3, 4, 6, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}) {
          const Tested resumed = GetParam().kind.make(comm, options);
          if (pause % 2 == 1) resumed->step(gradient_of(comm, 50));
          resumed->load(states[pause]);
          EXPECT_EQ(resumed.steps(), pause);
          for (std::uint64_t step = pause; step < std::min(kSteps, pause + 4); ++step) {
            ASSERT_EQ(resumed->save(), states[step]) << "pause " << pause << ", step " << step;
            ASSERT_EQ(make_step(resumed, step), results[step])
                << "pause " << pause << ", step " << step << ", P = " << P;
            ASSERT_EQ(resumed->save(), states[step + 1]);
          }
        }
      });
}

// The states of P ranks after some steps, and what they owed.
struct Saved {
  std::vector<Bytes> states;
  Dense owed;
  int P = 0;
};
constexpr std::uint64_t kBefore = 6;

Saved save_run(int P, const Case& c) {
  Saved saved{.owed = {}, .P = P};
  saved.states = gather_world("threads", P, [&](Communicator& comm) {
    const Tested tested = c.make(comm);
    for (std::uint64_t step = 0; step < kBefore; ++step) tested->step(dyadic_of(comm, step));
    const Dense owed = owed_by_all(comm, tested);
    if (comm.rank() == 0) saved.owed = owed;
    return tested->save();
  });
  return saved;
}

void expect_near(const Dense& is, const Dense& should, bool is_exact, const std::string& what) {
  for (std::size_t i = 0; i < is.size(); ++i)
    ASSERT_NEAR(is[i], should[i], is_exact ? 0 : 1e-6) << what << " [" << i << "]";
}

// Whether floats times Q / P, and means over Q, are exact.
bool is_exact(int P, int Q) { return (P & (P - 1)) == 0 && (Q & (Q - 1)) == 0; }

void expect_conserved(const Saved& saved, int Q, const Kind& kind, const ReducerOptions& options) {
  run_world("threads", Q, [&](Communicator& comm) {
    const std::string what = text_of(options.preset, ", ", saved.P, " to ", Q);
    const bool exact = is_exact(saved.P, Q);
    const Tested tested = kind.make(comm, options);
    tested->load_all(saved.states);
    EXPECT_EQ(tested.steps(), kBefore);
    Dense owed = owed_by_all(comm, tested);
    Dense expected = saved.owed;
    for (double& x : expected) x *= static_cast<double>(Q) / saved.P;
    expect_near(owed, expected, exact, what);
    Dense applied(n, 0.0);
    for (std::uint64_t step = kBefore; step < kBefore + 5; ++step) {
      const auto gradient = dyadic_of(comm, step);
      owed = plus(owed, sum_over_ranks(comm, gradient));
      applied = plus(applied, spread(tested->step(gradient), n), Q);
    }
    applied = plus(applied, spread(tested->flush(), n), Q);
    expect_near(applied, owed, exact, what + ", applied");
  });
}

TEST_P(StateLaws, load_all_on_other_ranks_owes_the_same) {
  for (const auto& [P, Q] : {std::pair{4, 2}, {2, 4}, {4, 1}, {1, 4}, {4, 3}, {3, 5}, {7, 4}})
    expect_conserved(save_run(P, GetParam()), Q, GetParam().kind, GetParam().method.options(k));
}

TEST_P(StateLaws, load_all_of_the_same_is_load) {
  for (const int P : {1, 3}) {
    const Saved saved = save_run(P, GetParam());
    run_world("threads", P, [&](Communicator& comm) {
      const Tested tested = GetParam().make(comm);
      tested->load_all(saved.states);
      EXPECT_EQ(tested->save(), saved.states[static_cast<std::size_t>(comm.rank())]);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Synchronisers, StateLaws, testing::ValuesIn(all_cases()), case_name);

class MethodChange : public testing::TestWithParam<Case> {};

TEST_P(MethodChange, load_all_with_another_preset_owes_the_same) {
  const Saved four = save_run(4, GetParam());
  const Saved three = save_run(3, GetParam());
  for (const TestedMethod& other : all_methods()) {
    if (other.name() == GetParam().method.name()) continue;
    expect_conserved(four, 4, GetParam().kind, other.options(2 * k));
    expect_conserved(three, 3, GetParam().kind, other.options(2 * k));
  }
}

// The kinds do it by the same code: one of them is enough.
INSTANTIATE_TEST_SUITE_P(Reducers, MethodChange, testing::ValuesIn(reducer_cases()), case_name);

}  // namespace
}  // namespace oktopk::synchroniser_conformance_test
