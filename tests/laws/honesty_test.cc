// SPDX-License-Identifier: Apache-2.0
// Law 4's arithmetic on counts given by hand: each kind of excess is seen.
#include "oktopk/laws/honesty.h"

#include <gtest/gtest.h>

#include "tests/support/world.h"

namespace oktopk::honesty_test {
namespace {

// Bounds of 1,000 B and 10 messages, and of 5,000 B and 20 for a step that refreshes.
VolumePromise promise(bool holds_bytes = true) {
  VolumePromise p{.k = 4, .P = 4, .holds_bytes = holds_bytes};
  p.steady.bound = sequential(10, 1000);
  p.refresh.bound = sequential(20, 5000);
  return p;
}

std::vector<Traffic> step_of(std::uint64_t bytes, std::uint64_t messages = 10) {
  Traffic t;
  t.duplex_messages = messages;
  t.bytes_sent = t.bytes_received = t.duplex_bytes = bytes;
  return std::vector<Traffic>(4, t);
}

Finding judge(Judged judged, const std::vector<std::uint64_t>& bytes, bool refreshed = false,
              Spread spread = Spread::even) {
  Honesty honesty(promise(), spread, judged);
  honesty.add(step_of(0, 0), false);  // the first step may have the agreement
  for (const std::uint64_t b : bytes) honesty.add(step_of(b), refreshed);
  return honesty.finding("honesty");
}

TEST(Honesty, add_messages_beyond_the_bound_break_it_unless_the_step_refreshed) {
  for (const bool refreshed : {false, true}) {
    Honesty honesty(promise(), Spread::tied, Judged::steps);
    honesty.add(step_of(0, 0), false);
    honesty.add(step_of(100, 11), refreshed);
    EXPECT_EQ(honesty.finding("honesty").holds, refreshed);
  }
}

TEST(Honesty, add_bytes_beyond_the_bound_break_it_unless_the_step_refreshed) {
  EXPECT_TRUE(judge(Judged::steps, {1000, 1000}).holds);
  EXPECT_FALSE(judge(Judged::steps, {1000, 3000}).holds);
  EXPECT_FALSE(judge(Judged::steps, {1000, 3000}, false, Spread::uneven).holds);
  EXPECT_TRUE(judge(Judged::steps, {1000, 3000}, false, Spread::tied).holds);
  EXPECT_TRUE(judge(Judged::steps, {3000, 3000}, true).holds);
  EXPECT_FALSE(judge(Judged::steps, {8000}, true).holds);
}

TEST(Honesty, finding_of_a_stream_is_broken_by_its_mean) {
  EXPECT_TRUE(judge(Judged::stream, {3000, 100, 100, 100}).holds);
  const Finding f = judge(Judged::stream, {3000, 3000, 3000, 100}, true);
  EXPECT_FALSE(f.holds);
  EXPECT_NE(f.detail.find("mean of 5 steps"), std::string::npos) << f.detail;
}

TEST(Honesty, finding_of_a_volume_that_grows_is_broken_however_often_it_says_refreshed) {
  std::vector<std::uint64_t> bytes;
  for (std::uint64_t step = 0; step < 100; ++step) bytes.push_back(500 + 40 * step);
  EXPECT_FALSE(judge(Judged::stream, bytes, true).holds);
}

TEST(Honesty, add_bytes_that_were_sent_and_not_received_break_it) {
  Honesty honesty(promise(), Spread::tied, Judged::steps);
  auto ranks = step_of(100);
  ranks[2].bytes_received -= 1;
  honesty.add(ranks, false);
  EXPECT_FALSE(honesty.finding("honesty").holds);
}

TEST(Honesty, finding_without_a_promise_says_what_was_seen) {
  Honesty honesty(promise(false), Spread::even, Judged::stream);
  honesty.add(step_of(160), false);
  honesty.add(step_of(16000), false);
  const Finding f = honesty.finding("volume");
  EXPECT_TRUE(f.holds);
  EXPECT_EQ(f.detail, "505 words per k on average, at most 1e+03, none promised");
}

// No count of a run goes in: the promise is known before the first step.
TEST(Honesty, promise_of_paper_thresholds_has_no_bytes_and_of_steered_ones_the_band) {
  run_world("threads", 3, [](Communicator& comm) {
    ReducerOptions options;
    options.preset = "oktopk";
    options.k = 100;
    const auto promised = [&] {
      const auto sync = make_synchroniser(comm, 10000, options, 1);
      return promise_of(Subject(*sync), options);
    };
    const VolumePromise steered = promised();
    EXPECT_TRUE(steered.holds_bytes);
    EXPECT_EQ(steered.k, 100);
    EXPECT_GT(steered.refresh.bound.bytes, steered.steady.bound.bytes);
    options.allreduce.thresholds = ThresholdRule::paper;
    EXPECT_FALSE(promised().holds_bytes);
    options.preset = "gaussiank";
    EXPECT_FALSE(promised().holds_bytes);
    options.preset = "topka";
    const double exact = promised().steady.bound.bytes;
    options.selector = "reused";  // up to 2k
    EXPECT_GT(promised().steady.bound.bytes, 1.8 * exact);
  });
}

}  // namespace
}  // namespace oktopk::honesty_test
