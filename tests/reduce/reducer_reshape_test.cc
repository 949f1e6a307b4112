// SPDX-License-Identifier: Apache-2.0
// States restored on another number of ranks, or with other options: (residuals + owner memory) / P
// is conserved at every index, and everything is applied in the end.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_reshape_test {
namespace {

constexpr Index n = 300;
constexpr std::size_t k = 15;
constexpr int kSteps = 6;

// The states of P ranks after some steps, and what they owed.
struct Saved {
  std::vector<Bytes> states;
  Dense owed;
  int P = 0;
};

Saved save_run(int P, const ReducerOptions& options, int steps = kSteps) {
  Saved saved{.owed = {}, .P = P};
  saved.states = gather_world("threads", P, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    for (int step = 0; step < steps; ++step) reducer.step(gradient_of(reducer, static_cast<std::uint64_t>(step)));
    const Dense owed = sum_unsent(reducer);
    if (comm.rank() == 0) saved.owed = owed;
    return reducer.save();
  });
  return saved;
}

void expect_near(const Dense& is, const Dense& should, bool exact, const std::string& what) {
  for (std::size_t i = 0; i < is.size(); ++i)
    ASSERT_NEAR(is[i], should[i], exact ? 0 : 1e-6) << what << " [" << i << "]";
}

// Whether floats times Q / P, and means over Q, are exact.
bool is_exact(int P, int Q) { return (P & (P - 1)) == 0 && (Q & (Q - 1)) == 0; }

void expect_conserved(const Saved& saved, int Q, const ReducerOptions& options) {
  run_world("threads", Q, [&](Communicator& comm) {
    const std::string what = options.preset + ", " + std::to_string(saved.P) + " to " + std::to_string(Q);
    const bool exact = is_exact(saved.P, Q);
    Reducer reducer(comm, n, options);
    reducer.load_all(saved.states);
    EXPECT_EQ(reducer.steps(), static_cast<std::uint64_t>(kSteps));
    Dense owed = sum_unsent(reducer);
    Dense expected = saved.owed;
    for (double& x : expected) x *= static_cast<double>(Q) / saved.P;
    expect_near(owed, expected, exact, what);
    Dense applied(n, 0.0);
    for (std::uint64_t step = kSteps; step < kSteps + 5; ++step) {
      const auto gradient = gradient_of(reducer, step);
      owed = plus(owed, sum_over_ranks(comm, gradient));
      applied = plus(applied, spread(reducer.step(gradient), n), Q);
    }
    applied = plus(applied, spread(reducer.flush(), n), Q);
    expect_near(applied, owed, exact, what + ", applied");
  });
}

class ReducerReshape : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerReshape, load_all_on_other_ranks_owes_the_same) {
  for (const auto& [P, Q] : {std::pair{4, 2}, {2, 4}, {4, 1}, {1, 4}, {4, 3}, {3, 5}})
    expect_conserved(save_run(P, GetParam().options(k)), Q, GetParam().options(k));
}

TEST_P(ReducerReshape, load_all_with_another_preset_owes_the_same) {
  const Saved four = save_run(4, GetParam().options(k));
  const Saved three = save_run(3, GetParam().options(k));
  for (const TestedMethod& other : all_methods()) {
    if (other.name() == GetParam().name()) continue;
    expect_conserved(four, 4, other.options(2 * k));
    expect_conserved(three, 3, other.options(2 * k));
  }
}

TEST_P(ReducerReshape, load_all_of_the_same_is_load) {
  for (const int P : {1, 3}) {
    const Saved saved = save_run(P, GetParam().options(k));
    run_world("threads", P, [&](Communicator& comm) {
      Reducer reducer(comm, n, GetParam().options(k));
      reducer.load_all(saved.states);
      EXPECT_EQ(reducer.save(), saved.states[static_cast<std::size_t>(comm.rank())]);
    });
  }
}

std::string method_name(const testing::TestParamInfo<TestedMethod>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Methods, ReducerReshape, testing::ValuesIn(all_methods()), method_name);

const TestedMethod kCirculant{"circulant", ResidualKind::owner_memory};

TEST(ReducerReshapes, load_all_keeps_the_place_in_the_warmup) {
  ReducerOptions options = kCirculant.options(k);
  options.warmup = dense_warmup(kSteps + 1);
  const Saved saved = save_run(3, options);
  run_world("threads", 2, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    reducer.load_all(saved.states);
    EXPECT_TRUE(reducer.step(gradient_of(reducer, 0)).is_dense());
    EXPECT_FALSE(reducer.step(gradient_of(reducer, 1)).is_dense());
  });
}

// Loads `choose(comm)` on Q ranks: the same message everywhere, and nothing changed.
template <class Choose>
void expect_refusal(int Q, const std::string& part, Choose choose) {
  const auto messages = gather_world("threads", Q, [&](Communicator& comm) {
    Reducer reducer(comm, n, kCirculant.options(k));
    Reducer twin(comm, n, kCirculant.options(k));
    reducer.step(gradient_of(reducer, 0));
    twin.step(gradient_of(twin, 0));
    const Bytes before = reducer.save();
    const std::string message = message_of([&] { reducer.load_all(choose(comm)); });
    EXPECT_EQ(reducer.save(), before);
    const auto gradient = gradient_of(reducer, 1);
    EXPECT_EQ(bits_of(reducer.step(gradient)), bits_of(twin.step(gradient)));
    return message;
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message, messages[0]);
  }
}

TEST(ReducerReshapes, load_all_of_unfit_states_is_refused_everywhere) {
  const auto good = save_run(3, kCirculant.options(k)).states;
  const auto later = save_run(3, kCirculant.options(k), kSteps + 1).states;
  const auto other = save_run(3, kCirculant.options(k + 1)).states;
  for (const int Q : {2, 3}) {
    expect_refusal(Q, "no states", [&](Communicator&) { return std::vector<Bytes>{}; });
    expect_refusal(Q, "state 2 of 3: state: damaged", [&](Communicator&) {
      auto states = good;
      states[2].back() ^= std::byte{1};
      return states;
    });
    expect_refusal(Q, "rank 1: state 0 of 3: state: ", [&](Communicator& comm) {
      auto states = good;
      if (comm.rank() == 1) states[0].pop_back();
      if (comm.rank() == 1) states[1].clear();
      return states;
    });
    expect_refusal(Q, "saved by rank 2: states must be in rank order", [&](Communicator&) {
      return std::vector<Bytes>{good[0], good[2], good[1]};
    });
    expect_refusal(Q, "of 3", [&](Communicator&) { return std::vector<Bytes>{good[0], good[1]}; });
    expect_refusal(Q, " steps", [&](Communicator&) { return std::vector<Bytes>{good[0], later[1], good[2]}; });
    expect_refusal(Q, "other options", [&](Communicator&) { return std::vector<Bytes>{good[0], other[1], good[2]}; });
  }
  expect_refusal(2, "different states", [&](Communicator& comm) { return comm.rank() == 0 ? good : other; });
  const auto two = save_run(2, kCirculant.options(k)).states;
  expect_refusal(5, "different states", [&](Communicator& comm) { return comm.rank() == 3 ? two : good; });
}

TEST(ReducerReshapes, load_all_of_another_n_is_refused) {
  const auto states = gather_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, n - 1, kCirculant.options(k));
    reducer.step(gradient_of(reducer, 0));
    return reducer.save();
  });
  expect_refusal(3, "n = 299", [&](Communicator&) { return states; });
  expect_refusal(2, "n = 299", [&](Communicator&) { return states; });
}

}  // namespace
}  // namespace oktopk::reducer_reshape_test
