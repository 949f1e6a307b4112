// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_options.h"

#include <gtest/gtest.h>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "tests/device/hidden_device.h"
#include "tests/laws/inputs.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_options_test {
namespace {

using Change = std::function<void(ReducerOptions&)>;

std::string answer(const std::string& preset, const Change& change) {
  ReducerOptions options{.preset = preset};
  change(options);
  return message_of([&] { describe(options, 100); });
}

TEST(ReducerOptions, describe_refuses_what_auto_chooses_itself) {
  EXPECT_EQ(answer("auto", [](auto&) {}), "accepted");
  EXPECT_NE(answer("auto", [](auto& o) { o.allreduce.codec.value = ValueCoding::bf16; })
                .find("codec with preset auto, which chooses the coding itself"),
            std::string::npos);
  EXPECT_EQ(answer("auto", [](auto& o) { o.allreduce.skips = "1"; }),
            "reducer: skips with preset auto, which chooses them itself: name a preset");
  EXPECT_EQ(answer("auto", [](auto& o) { o.allreduce.tau = 8; }), "accepted");
  EXPECT_EQ(answer("auto", [](auto& o) { o.allreduce.residual = ResidualKind::sender_keeps; }), "accepted");
}

TEST(ReducerOptions, describe_refuses_what_only_auto_uses) {
  const std::vector<std::pair<std::string, Change>> changes = {
      {"profile", [](auto& o) { o.profile = Profile{}; }},
      {"choice.presets", [](auto& o) { o.choice.presets = {"topka"}; }},
      {"choice.overrides", [](auto& o) { o.choice.overrides = Overrides::parse("dense"); }},
      {"choice.coarsest", [](auto& o) { o.choice.coarsest = ValueCoding::fp32; }},
      {"choice.review", [](auto& o) { o.choice.review = false; }}};
  for (const auto& [option, change] : changes) {
    EXPECT_EQ(answer("circulant", change), "reducer: " + option + " with preset circulant, but only auto uses it");
    EXPECT_EQ(answer("auto", change), "accepted");
  }
}

TEST(ReducerOptions, describe_refuses_skips_except_with_circulant) {
  const Change change = [](auto& o) { o.allreduce.skips = "direct"; };
  EXPECT_EQ(answer("oktopk", change), "reducer: skips with preset oktopk, but only circulant uses them");
  EXPECT_EQ(answer("circulant", change), "accepted");
}

TEST(ReducerOptions, n_beyond_an_index_is_refused_by_name) {
  constexpr std::uint64_t kTooMany = std::uint64_t{1} << 32U;
  run_world("threads", 1, [&](Communicator& comm) {
    EXPECT_EQ(message_of([&] { Reducer(comm, kTooMany); }),
              "reducer: n = 4294967296, but n must be at most 2^32 - 1: divide the gradient over several Reducers");
    EXPECT_NE(message_of([&] { NodeReducer(comm, kTooMany); }).find("n = 4294967296, but n must be at most 2^32 - 1"),
              std::string::npos);
    EXPECT_EQ(
        message_of([&] {
          BucketedReducer(comm, std::vector<std::uint64_t>{kTooMany - 1, 1});
        }),
        "bucketed reducer: n = 4294967296, but n must be at most 2^32 - 1: divide the gradient over several Reducers");
  });
}

TEST(ReducerOptions, reducer_needs_no_options) {
  run_world("threads", 2, [](Communicator& comm) {
    Reducer reducer(comm, 1000);
    EXPECT_EQ(reducer.k(), 10u);
    EXPECT_GT(reducer.step(std::vector<float>(1000, 1.0F)).size(), 0u);
  });
}

TEST(ReducerOptions, a_given_device_makes_the_passes_and_changes_no_bit) {
  run_world("threads", 3, [](Communicator& comm) {
    const auto device = std::make_shared<HiddenDevice>(/*is_strict=*/false);  // gradients lie in host memory
    const ReducerOptions plain{.preset = "circulant", .density = 0.1, .warmup = dense_warmup(1)};
    ReducerOptions given = plain;
    given.device = device;
    const auto trains_alike = [&](Synchroniser& one, Synchroniser& other) {
      device->passes = 0;
      for (int step = 0; step < 4; ++step) {
        const auto gradient = make_input(Input::gaussian, 200, comm.rank(), static_cast<std::uint64_t>(step), 7);
        std::vector<float> weights(200), others(200);
        one.step(gradient).subtract_from(weights);
        other.step(gradient).subtract_from(others);
        EXPECT_EQ(weights, others);
      }
      EXPECT_EQ(one.save(), other.save());
      EXPECT_GT(device->passes, 0);
    };
    Reducer reducer(comm, 200, plain), counted(comm, 200, given);
    trains_alike(reducer, counted);
    NodeReducer nodes(comm, 200, plain, {.group = 2}), counted_nodes(comm, 200, given, {.group = 2});
    trains_alike(nodes, counted_nodes);
    const std::vector<int> tensors = {50, 30, 120};
    BucketedReducer buckets(comm, tensors, plain), counted_buckets(comm, tensors, given);
    trains_alike(buckets, counted_buckets);
  });
}

}  // namespace
}  // namespace oktopk::reducer_options_test
