// SPDX-License-Identifier: Apache-2.0
// Saved state on real processes: a new Reducer continues bit by bit, a bad state on one rank is an
// error on all, and the states of all ranks can be restored by fewer.
#include <gtest/gtest.h>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/laws.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::state_test {
namespace {

class MpiState : public testing::TestWithParam<std::string> {};

TEST_P(MpiState, resumed_run_is_the_uninterrupted_one) {
  const auto comm = make_mpi_world();
  ReducerOptions options = preset_options(GetParam(), 20);
  options.allreduce.tau = 4;
  options.allreduce.tau_prime = 3;
  options.warmup = dense_warmup(1);
  options = only_used(options);
  Reducer whole(*comm, 500, options);
  for (std::uint64_t step = 0; step < 6; ++step) whole.step(gradient_of(whole, step));
  const Bytes state = whole.save();
  Reducer resumed(*comm, 500, options);
  resumed.load(state);
  for (std::uint64_t step = 6; step < 12; ++step) {
    const auto gradient = gradient_of(whole, step);
    EXPECT_EQ(bits_of(resumed.step(gradient)), bits_of(whole.step(gradient))) << "step " << step;
  }
  EXPECT_EQ(resumed.save(), whole.save());
}

TEST_P(MpiState, damaged_state_on_one_rank_is_refused_on_all_and_changes_nothing) {
  const auto comm = make_mpi_world();
  Reducer reducer(*comm, 500, preset_options(GetParam(), 20));
  for (std::uint64_t step = 0; step < 3; ++step) reducer.step(gradient_of(reducer, step));
  const Bytes before = reducer.save();
  Bytes state = before;
  if (comm->rank() == comm->size() - 1) state.back() ^= std::byte{1};
  const std::string message = message_of([&] { reducer.load(state); });
  EXPECT_NE(message.find("rank " + std::to_string(comm->size() - 1) + ": state: damaged"), std::string::npos)
      << message;
  EXPECT_EQ(reducer.save(), before);
  EXPECT_EQ(message_of([&] { reducer.step(gradient_of(reducer, 3)); }), "accepted");
}

TEST_P(MpiState, law_over_a_restart_holds) {
  const auto comm = make_mpi_world();
  Trial trial;
  trial.options = preset_options(GetParam(), 20);
  trial.n = 500;
  trial.steps = 8;
  const Finding finding = check_restore(*comm, trial);
  EXPECT_TRUE(finding.holds) << finding.detail;
}

INSTANTIATE_TEST_SUITE_P(Presets, MpiState, testing::Values("circulant", "oktopk"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace oktopk::state_test
