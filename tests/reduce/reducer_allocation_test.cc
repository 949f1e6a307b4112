// SPDX-License-Identifier: Apache-2.0
// Memory of a step is reused: once buffers have grown to the size of the problem, a step allocates
// nothing, on any rank. Not meant are the rare steps that evaluate cuts or thresholds anew, and
// that a vector outgrows what it ever held: sizes of steps vary, and buffers grow by a quarter
// then.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "oktopk/laws/gradient_stream.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/allocations.h"
#include "tests/support/world.h"

namespace oktopk::reducer_allocation_test {
namespace {

constexpr Index kN = 20000;
constexpr std::size_t kGrowth = 2;  // allocations in all of the last steps: one sparse vector
constexpr std::size_t kWarm = 250;  // until the largest sizes were seen

// Allocations of each of the last steps of a steady stream, on this rank.
std::vector<std::size_t> late_allocations(Communicator& comm, const ReducerOptions& options) {
  Reducer reducer(comm, kN, only_used(options));
  GradientStream stream({.n = kN}, comm.rank());
  std::vector<std::size_t> counts(8);
  for (std::size_t step = 0; step < kWarm + counts.size(); ++step) {
    const auto gradient = stream.at(step);
    const std::size_t before = allocations_of_this_thread();
    reducer.step(gradient);
    if (step >= kWarm && !state_of(reducer).outcome.refreshed)
      counts[step - kWarm] = allocations_of_this_thread() - before;
  }
  return counts;
}

class ReducerAllocation : public testing::TestWithParam<std::string> {};

void expect_few(const ReducerOptions& options, std::size_t most) {
  const auto ranks = gather_world("threads", 3, [&](Communicator& comm) { return late_allocations(comm, options); });
  for (std::size_t r = 0; r < ranks.size(); ++r)
    EXPECT_LE(std::accumulate(ranks[r].begin(), ranks[r].end(), std::size_t{0}), most)
        << to_string(options.allreduce.codec.value_or(Codec{})) << ", rank " << r;
}

TEST_P(ReducerAllocation, step_allocates_nothing_but_to_grow) {
  for (const char* codec : {"coo32+fp32", "elias_fano+bf16", "bit_packed+log8"}) {
    ReducerOptions options;
    options.preset = GetParam();
    options.allreduce.codec = parse_codec(codec);
    expect_few(options, kGrowth);
  }
}

TEST(DenseAllocation, step_by_either_schedule_and_coding_allocates_nothing) {
  for (const DenseSchedule schedule : {DenseSchedule::rabenseifner, DenseSchedule::ring})
    for (const char* codec : {"fp32", "bf16"}) {
      ReducerOptions options;
      options.preset = "dense";
      options.allreduce.codec = parse_codec(codec);
      options.allreduce.dense = schedule;
      expect_few(options, 0);
    }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Presets, ReducerAllocation, testing::ValuesIn(preset_names()),
                         [](const auto& row) { return row.param; });

TEST(Allocations, are_counted) {
  const std::size_t before = allocations_of_this_thread();
  const std::vector<float> some(100);
  EXPECT_EQ(allocations_of_this_thread(), before + 1) << some.size();
}

}  // namespace
}  // namespace oktopk::reducer_allocation_test
