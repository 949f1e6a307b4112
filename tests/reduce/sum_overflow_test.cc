// SPDX-License-Identifier: Apache-2.0
// Finite gradients whose sum is not: an error on every rank, whatever sums them, never an update
// that holds Inf. Where all ranks see the sum all of them throw the same UsageError.
#include <gtest/gtest.h>

#include <algorithm>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/unsent.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk::sum_overflow_test {
namespace {

constexpr Index n = 40;
constexpr float kLarge = 2e38F;  // two of them are too much

ReducerOptions options_of(std::string_view preset, const std::string& codec = "coo32+fp32") {
  ReducerOptions options;
  options.preset = preset;
  options.k = 10;
  options.allreduce.codec = parse_codec(codec);
  return only_used(options);
}

std::vector<float> large_at(std::size_t i, float value = kLarge) {
  std::vector<float> gradient(n, 0.0F);
  gradient[i] = value;
  return gradient;
}

// How an act ends: the text of a UsageError, "comm" or "none".
template <class Act>
std::string end_of(const Act& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const CommError&) {
    return "comm";
  }
  return "none";
}

void expect_overflow(const std::vector<std::string>& ends, const std::string& what) {
  std::size_t seen = 0;
  for (const std::string& end : ends) {
    EXPECT_NE(end, "none") << what;
    if (end == "comm") continue;
    ++seen;
    EXPECT_NE(end.find("overflowed"), std::string::npos) << what << ": " << end;
    EXPECT_NE(end.find("scale the gradients down"), std::string::npos) << what << ": " << end;
  }
  EXPECT_GE(seen, 1U) << what;
}

void expect_same_overflow(const std::vector<std::string>& ends, const std::string& what) {
  expect_overflow(ends, what);
  for (const std::string& end : ends) EXPECT_EQ(end, ends[0]) << what;
  EXPECT_NE(ends[0].find("at index 7"), std::string::npos) << what << ": " << ends[0];
}

// Afterwards nobody can go on, and nobody waits.
template <class Sync>
std::string end_for_good(Sync& sync, const std::vector<float>& gradient) {
  const std::string end = end_of([&] { sync.step(gradient); });
  EXPECT_THROW(sync.step(std::vector<float>(gradient.size(), 1.0F)), CommError);
  return end;
}

// A rank that is late can meet the failure of another before it adds its gradient: such a rank
// still holds the state from before the step, whole. No rank saves a state from half-way.
void expect_no_state_from_half_way(const Reducer& reducer, const auto& before, bool is_late) {
  if (!is_late) {
    EXPECT_THROW(reducer.save(), UsageError);
    return;
  }
  try {
    EXPECT_EQ(reducer.save(), before);
  } catch (const UsageError&) {
  }
}

std::vector<std::string> ends_of_step(int P, const ReducerOptions& options) {
  return gather_world("threads", P, [&](Communicator& comm) {
    Reducer reducer(comm, n, only_used(options));
    const auto before = reducer.save();
    const std::string end = end_for_good(reducer, large_at(7));
    expect_no_state_from_half_way(reducer, before, end == "comm");
    return end;
  });
}

TEST(SumOverflow, step_of_every_preset_and_codec_is_an_error_on_every_rank) {
  for (const Preset& preset : presets())
    for (const ResidualKind rule : preset.residuals)
      for (const std::string codec : {"coo32+fp32", "coo32+bf16", "elias_fano+log8", "bit_packed+log4"})
        for (const int P : {2, 3, 5}) {
          ReducerOptions options = options_of(preset.name, codec);
          options.allreduce.residual = rule;
          const std::string what = std::string(preset.name) + ", " + std::string(to_string(rule)) + ", " + codec +
                                   ", P = " + std::to_string(P);
          expect_overflow(ends_of_step(P, options), what);
        }
}

// One after the other: the second step of oktopk and circulant sums by thresholds that it knows.
TEST(SumOverflow, later_step_of_every_preset_is_an_error_on_every_rank) {
  for (const Preset& preset : presets())
    for (const int P : {2, 3}) {
      const auto ends = gather_world("threads", P, [&](Communicator& comm) {
        Reducer reducer(comm, n, options_of(preset.name));
        for (int step = 0; step < 3; ++step) reducer.step(std::vector<float>(n, 1.0F));
        return end_for_good(reducer, large_at(7));
      });
      expect_overflow(ends, std::string(preset.name) + ", P = " + std::to_string(P));
    }
}

TEST(SumOverflow, step_that_all_ranks_sum_is_the_same_error_everywhere) {
  for (const int P : {2, 3, 5}) {
    for (const std::string preset : {"topka", "gaussiank"})
      expect_same_overflow(ends_of_step(P, options_of(preset)), preset);
    for (const DenseSchedule schedule : {DenseSchedule::rabenseifner, DenseSchedule::ring}) {
      ReducerOptions options = options_of("dense");
      options.allreduce.dense = schedule;
      expect_same_overflow(ends_of_step(P, options), "dense");
      options.allreduce.codec = parse_codec("coo32+bf16");
      expect_overflow(ends_of_step(P, options), "dense in bf16");
    }
  }
}

TEST(SumOverflow, dense_warmup_is_the_same_error_everywhere) {
  for (const Preset& preset : presets())
    for (const int P : {2, 3}) {
      if (preset.name == "dense") continue;
      ReducerOptions options = options_of(preset.name);
      options.warmup = {{.steps = 2, .density = 1}};
      expect_same_overflow(ends_of_step(P, options), std::string(preset.name));
    }
}

// All ranks have seen it, so they are in step: the communicator lives, and the way out works.
TEST(SumOverflow, ranks_that_all_saw_it_load_or_forget_and_go_on) {
  for (const std::string preset : {"dense", "topka", "gaussiank"})
    for (const bool loads : {true, false})
      run_world("threads", 3, [&](Communicator& comm) {
        Reducer reducer(comm, n, options_of(preset));
        const std::vector<float> ones(n, 1.0F);
        reducer.step(ones);
        const Bytes saved = reducer.save();
        EXPECT_THROW(reducer.step(large_at(7)), SumOverflow);
        const std::string refusal = message_of<CommError>([&] { reducer.step(ones); });
        EXPECT_NE(refusal.find("load() the last saved state, or forget()"), std::string::npos);
        loads ? reducer.load(saved) : reducer.forget();
        EXPECT_GT(reducer.step(ones).size(), 0U);
        EXPECT_EQ(reducer.steps(), 2U);
      });
}

// Selected is what is larger: 2e38 stays behind on every rank, until all of it is asked for.
TEST(SumOverflow, flush_is_the_same_error_everywhere) {
  for (const std::string preset : {"topka", "topkdsa", "spardl", "topka2a", "gtopk"})
    for (const int P : {2, 3}) {
      const auto ends = gather_world("threads", P, [&](Communicator& comm) {
        ReducerOptions options = options_of(preset);
        options.k = 1;
        Reducer reducer(comm, n, only_used(options));
        std::vector<float> gradient = large_at(7);
        gradient[static_cast<std::size_t>(comm.rank())] = 3e38F;
        // A quota of another region takes the largest of that region.
        if (preset == "topka2a" || preset == "spardl") gradient[7] = 0;
        reducer.step(gradient);
        if (gradient[7] == 0) reducer.give_unsent(large_at(7));
        const std::string end = end_of([&] { reducer.flush(); });
        EXPECT_THROW(reducer.flush(), CommError);
        return end;
      });
      expect_same_overflow(ends, preset);
    }
}

TEST(SumOverflow, bucket_that_overflows_is_an_error_on_every_rank) {
  for (const std::string preset : {"dense", "topka", "circulant", "oktopk"})
    for (const int P : {2, 3}) {
      const auto ends = gather_world("threads", P, [&](Communicator& comm) {
        FusionOptions fusion;
        fusion.policy = FusionPolicy::tensor;
        BucketedReducer bucketed(comm, {10, 10, 20}, options_of(preset), fusion);
        bucketed.step(std::vector<float>(n, 1.0F));
        const std::string end = end_for_good(bucketed, large_at(7));
        EXPECT_THROW(bucketed.flush(), CommError);
        return end;
      });
      expect_overflow(ends, preset);
      for (const std::string& end : ends)
        EXPECT_TRUE(end == "comm" || end.find("in tensors 0 to 0") != std::string::npos) << end;
    }
}

// In the node's sum (ranks 0 and 1), and in the leaders' (0 and 2).
TEST(SumOverflow, nodes_end_with_an_error_on_every_rank) {
  for (const std::string preset : {"dense", "topka", "circulant"})
    for (const int other : {1, 2})
      for (const int P : {3, 5}) {
        const auto ends = gather_world("threads", P, [&](Communicator& comm) {
          NodeReducer nodes(comm, n, options_of(preset), {.group = 2});
          nodes.step(std::vector<float>(n, 1.0F));
          const bool is_large = comm.rank() == 0 || comm.rank() == other;
          return end_for_good(nodes, large_at(7, is_large ? kLarge : 0.0F));
        });
        expect_overflow(ends, preset + ", with rank " + std::to_string(other));
        const bool is_named = ends[0].find("rank 0's node overflowed at index 7") != std::string::npos;
        EXPECT_TRUE(other != 1 || is_named) << ends[0];
      }
}

}  // namespace
}  // namespace oktopk::sum_overflow_test
