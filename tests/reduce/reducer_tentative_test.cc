// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/device/hidden_device.h"
#include "tests/support/runs.h"
#include "tests/support/tentative.h"

namespace oktopk::reducer_tentative_test {
namespace {

constexpr Index n = 700;
constexpr std::size_t k = 20;

ReducerOptions options_of(const TestedMethod& method) { return staged_options(method, k); }

class ReducerTentative : public testing::TestWithParam<TestedMethod> {};

// All that is of length n goes through the device: a GPU could make these steps.
TEST_P(ReducerTentative, memory_of_another_device_comes_back) {
  run_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions hidden = options_of(GetParam());
    hidden.device = std::make_shared<HiddenDevice>(/*is_strict=*/false);  // gradients lie in host memory
    Reducer plain(comm, n, options_of(GetParam()));
    Reducer tentative(comm, n, hidden);
    for (std::uint64_t step = 0; step < 8; ++step) {
      const auto gradient = gradient_of(plain, step, Input::skewed);
      const auto bits = bits_of(plain.step(gradient));
      tentative.propose(gradient);
      tentative.roll_back();
      ASSERT_EQ(bits_of(tentative.propose(gradient)), bits);
      tentative.commit();
    }
    EXPECT_EQ(tentative.save(), plain.save());
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, ReducerTentative, testing::ValuesIn(all_methods()),
                         [](const auto& method) { return method.param.name(); });

TEST(ReducerTentativeCalls, moved_reducer_keeps_mass_and_place) {
  run_world("threads", 3, [](Communicator& comm) {
    const ReducerOptions options = preset_options("circulant", k);
    Reducer reducer(comm, n, options);
    for (std::uint64_t step = 0; step < 4; ++step) reducer.step(gradient_of(reducer, step, Input::dyadic));
    std::vector<float> unsent(n);
    Reducer copy(comm, n, options);
    copy.load(reducer.save());
    copy.take_unsent(unsent);
    const auto other = comm.split(0, comm.rank());
    const auto moved = reducer.moved_to(*other);
    EXPECT_EQ(moved->steps(), 4U);
    std::vector<float> kept(n);
    moved->take_unsent(kept);
    EXPECT_EQ(kept, unsent);
    EXPECT_EQ(reducer.unsent_norm(), 0);
  });
}

}  // namespace
}  // namespace oktopk::reducer_tentative_test
