// SPDX-License-Identifier: Apache-2.0
// States that are sealed well and hold what no run can have saved: NaN in the residual, in the
// owner memory, in thresholds, in an optimiser's moments. One rank's is refused on every rank, by a
// text that says what and where, and nothing changes anywhere. And the way out of a failed step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/base/hash.h"
#include "oktopk/optim/optimiser.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/unsent.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::bad_state_test {
namespace {

constexpr Index n = 60;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void reseal(std::span<std::byte> state) {
  constexpr std::uint64_t kFormat = 3;
  const std::uint64_t check = hash_bytes(state.subspan(kStateHeadBytes), kFormat);
  std::memcpy(state.data() + kStateHeadBytes - sizeof(check), &check, sizeof(check));
}

// The state with NaN in place of the last value that is x, bit by bit. The last `nested` bytes are
// a state that is sealed for itself (0: none).
Bytes poison(Bytes state, float x, std::size_t nested = 0) {
  const auto bits = std::as_bytes(std::span(&x, 1));
  const auto at = std::find_end(state.begin(), state.end(), bits.begin(), bits.end());
  EXPECT_NE(at, state.end()) << x;
  if (at == state.end()) return state;
  std::memcpy(&*at, &kNan, sizeof(kNan));
  if (nested > 0) reseal(std::span(state).last(nested));
  reseal(state);
  return state;
}

// load() of a state that rank 1 finds poisoned, everywhere.
template <class Object>
void expect_refusal(Communicator& comm, Object& object, const Bytes& bad, const std::string& what) {
  const Bytes before = object.save();
  const std::string message = message_of([&] { object.load(comm.rank() == 1 ? bad : Bytes(before)); });
  EXPECT_NE(message.find("rank 1: state: " + what), std::string::npos) << message;
  EXPECT_EQ(object.save(), before);
}

TEST(BadState, residual_that_is_not_finite_is_refused_by_all) {
  for (const std::string preset : {"topka", "circulant"})
    run_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, n, preset_options(preset, 3));
      std::vector<float> gradient(n, 0.0F);
      for (std::size_t i = 0; i < 30; ++i) gradient[i] = 100.0F + static_cast<float>(i);
      gradient[41] = 0.3141592F;
      reducer.step(gradient);
      ASSERT_EQ(state_of(reducer).unsent.values()[41], 0.3141592F);
      expect_refusal(comm, reducer, poison(reducer.save(), 0.3141592F), "residual[41] is ");
    });
}

TEST(BadState, owner_memory_that_is_not_finite_is_refused_by_all) {
  run_world("threads", 2, [&](Communicator& comm) {
    Reducer reducer(comm, n, preset_options("circulant", 10));
    for (std::uint64_t step = 0; step < 3; ++step) reducer.step(gradient_of(reducer, step));
    const auto memory = state_of(reducer).unsent.memory().values;
    const auto some = std::find_if(memory.begin(), memory.end(), [](float m) { return m != 0; });
    ASSERT_NE(some, memory.end());
    expect_refusal(comm, reducer, poison(reducer.save(), *some), "owner memory[");
  });
}

// After its first step oktopk keeps the smallest that was sent and the smallest that was applied.
TEST(BadState, thresholds_that_are_not_finite_are_refused_by_all) {
  run_world("threads", 2, [&](Communicator& comm) {
    ReducerOptions options = preset_options("oktopk", 10);
    options.allreduce.thresholds = ThresholdRule::paper;  // thresholds are what the metrics say
    Reducer reducer(comm, n, options);
    reducer.step(gradient_of(reducer, 0));
    const StepMetrics metrics = reducer.metrics();
    expect_refusal(comm, reducer, poison(reducer.save(), static_cast<float>(metrics.local_threshold)),
                   "the local threshold is ");
    expect_refusal(comm, reducer, poison(reducer.save(), static_cast<float>(metrics.global_threshold)),
                   "the global threshold is ");
  });
}

TEST(BadState, slopes_and_steered_thresholds_that_are_not_finite_are_refused) {
  for (const auto& [threshold, slope] : {std::pair{kNan, 1.0}, {-1.0F, 1.0}, {1.0F, double{kNan}}}) {
    StateWriter writer;
    writer.put(threshold);
    writer.put(slope);
    writer.put(std::uint64_t{0});
    const Bytes state = writer.seal();
    StateReader reader(state);
    EXPECT_THROW(make_selector("controlled", {})->load(reader), UsageError);
  }
  StateWriter writer;
  writer.put(kNan);
  const Bytes state = writer.seal();
  StateReader reader(state);
  EXPECT_THROW(GlobalThreshold().load(reader), UsageError);
}

TEST(BadState, merged_states_that_are_not_finite_or_overflow_are_refused) {
  for (const float value : {0.3141592F, 3e38F}) {
    auto states = gather_world("threads", 2, [&](Communicator& comm) {
      Reducer reducer(comm, n, preset_options("topka", 3));
      std::vector<float> unsent(n, 0.0F);
      unsent[41] = value;
      reducer.give_unsent(unsent);
      return reducer.save();
    });
    if (value < 1) states[1] = poison(states[1], value);
    run_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, n, preset_options("topka", 3));
      const Bytes before = reducer.save();
      const std::string message = message_of([&] { reducer.load_all(states); });
      const std::string what = value < 1 ? "residual[41] is " : "overflows at index 41";
      EXPECT_NE(message.find(what), std::string::npos) << message;
      EXPECT_EQ(reducer.save(), before);
    });
  }
}

TEST(BadState, moments_that_are_not_finite_are_refused_by_all) {
  run_world("threads", 2, [&](Communicator& comm) {
    std::vector<float> gradient(n, 0.0F);
    gradient[4] = 0.7F;
    std::vector<float> weights(n, 0.0F);
    Reducer reducer(comm, n, preset_options("dense", 3));
    const std::size_t nested = reducer.save().size();
    SparseSGD sgd(reducer, {.learning_rate = 1, .momentum = 0.9F});
    sgd.step(weights, gradient);
    expect_refusal(comm, sgd, poison(sgd.save(), 0.7F, nested), "momentum[4] is ");
    SparseAdamW adam(reducer, {});
    adam.step(weights, gradient);
    const float first = (1 - 0.9F) * 0.7F;
    const float second = (1 - 0.999F) * (0.7F * 0.7F);
    const std::size_t size = reducer.save().size();
    expect_refusal(comm, adam, poison(adam.save(), first, size), "first moment[4] is ");
    expect_refusal(comm, adam, poison(adam.save(), second, size), "second moment[4] is ");
  });
}

// One buffer for all: whoever kept two states at a time would read one of them wrong.
TEST(BadState, load_all_holds_one_state_at_a_time) {
  for (const int Q : {1, 2, 3, 4}) {
    const auto states = gather_world("threads", 3, [&](Communicator& comm) {
      Reducer reducer(comm, n, preset_options("circulant", 5));
      for (std::uint64_t step = 0; step < 4; ++step) reducer.step(gradient_of(reducer, step));
      return reducer.save();
    });
    run_world("threads", Q, [&](Communicator& comm) {
      Reducer at_once(comm, n, preset_options("circulant", 5));
      Reducer one_by_one(comm, n, preset_options("circulant", 5));
      at_once.load_all(states);
      Bytes held;
      one_by_one.load_all(states.size(), [&](std::size_t r) -> std::span<const std::byte> {
        std::fill(held.begin(), held.end(), std::byte{0xff});
        held = states[r];
        return held;
      });
      EXPECT_EQ(one_by_one.save(), at_once.save());
    });
  }
}

// The message of a Reducer on a dead communicator is true: it works in a new world, and only there.
TEST(BadState, failed_step_is_left_by_a_new_communicator_and_load) {
  const ReducerOptions options = preset_options("circulant", 5);
  const auto saved = gather_world("threads", 3, [&](Communicator& comm) {
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 3; ++step) reducer.step(gradient_of(reducer, step));
    Bytes state = reducer.save();
    std::vector<float> gradient(n, 1.0F);
    if (comm.rank() == 1) gradient[4] = 3e38F;
    EXPECT_ANY_THROW(reducer.step(gradient, 2));
    const std::string way_out = message_of<CommError>([&] { reducer.step(gradient); });
    // Others may have seen the world die before anything of theirs had changed.
    const std::string promise = "build a new one and a new object on it, and load()";
    EXPECT_TRUE(comm.rank() != 1 || way_out.find(promise) != std::string::npos) << way_out;
    EXPECT_THROW(reducer.load(state), CommError);
    reducer.forget();
    EXPECT_THROW(reducer.step(gradient), CommError);
    return state;
  });
  run_world("threads", 3, [&](Communicator& comm) {
    const Bytes& state = saved[static_cast<std::size_t>(comm.rank())];
    Reducer reducer(comm, n, options);
    reducer.load(state);
    EXPECT_EQ(reducer.save(), state);
    EXPECT_GT(reducer.step(gradient_of(reducer, 3)).size(), 0U);
  });
}

}  // namespace
}  // namespace oktopk::bad_state_test
