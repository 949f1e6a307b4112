// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_options.h"

#include <gtest/gtest.h>

#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "tests/device/hidden_device.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::reducer_options_test {
namespace {

using Change = std::function<void(ReducerOptions&)>;

// Options that a preset ignores, and what the error says of them; "": it takes them.
struct Asked {
  std::string preset;
  Change change;
  std::string refusal;
};

const std::vector<Asked>& asked() {
  static const Change none = [](auto&) {};
  static const Change skips = [](auto& o) { o.allreduce.skips = "direct"; };
  static const Change tau = [](auto& o) { o.allreduce.tau = 8; };
  static const Change thresholds = [](auto& o) { o.allreduce.thresholds = ThresholdRule::paper; };
  static const Change reused = [](auto& o) { o.allreduce.tau_prime = 5, o.selector = "reused"; };
  static const Change lossy = [](auto& o) { o.allreduce.codec = parse_codec("elias_fano+log8"); };
  static const std::vector<Asked> rows = {
      {"auto", none, ""},
      {"auto", [](auto& o) { o.allreduce.codec = Codec{}; },
       "codec = coo32+fp32 with preset auto, which chooses the coding itself: name a preset, or set coarsest (in C++ "
       "choice.coarsest), the coarsest value coding that it may take (fp32: lossless)"},
      {"auto", skips, "skips = direct with preset auto, which chooses them itself: name a preset"},
      {"auto", tau, ""},
      {"auto", [](auto& o) { o.allreduce.residual = ResidualKind::sender_keeps; }, ""},
      {"auto", [](auto& o) { o.choice.allreduce.tau = 7; },
       "choice.allreduce with preset auto, but options.allreduce counts"},
      {"auto", [](auto& o) { o.choice.groups = true; },
       "choice.groups = 1 with preset auto, but only NodeReducer forms groups"},
      {"topka", [](auto& o) { o.k = 7, o.density = 0.01; },
       "density = 0.01 with preset topka, but k is given, too: give one of them"},
      {"oktopk", skips, "skips = direct with preset oktopk, but only circulant uses them"},
      {"circulant", skips, ""},
      {"circulant", tau, "tau = 8 with preset circulant, but only oktopk uses it"},
      {"oktopk", tau, ""},
      {"circulant", [](auto& o) { o.allreduce.bucket = 8; },
       "bucket = 8 with preset circulant, but only oktopk uses it"},
      {"circulant", [](auto& o) { o.allreduce.balance_trigger = 8; },
       "balance_trigger = 8 with preset circulant, but only oktopk uses it"},
      {"topka", thresholds, "thresholds = paper with preset topka, but only oktopk and the selector reused use it"},
      {"topka", reused, ""},
      {"slots", lossy,
       "codec = elias_fano+log8 with preset slots, whose entries have a coding of their own: 12 bits of place, 20 of "
       "value"},
      {"dense", [](auto& o) { o.allreduce.codec = parse_codec("coo32+bf16"); }, ""},
      {"dense", lossy,
       "codec = elias_fano+log8 with preset dense, which sends values without indices, in fp32 or bf16"},
  };
  return rows;
}

void expect_answer(const std::string& preset, const Change& change, const std::string& refusal) {
  ReducerOptions options{.preset = preset};
  change(options);
  EXPECT_EQ(message_of([&] { check_used(options); }), refusal.empty() ? "accepted" : "reducer: " + refusal);
  EXPECT_EQ(message_of([&] { check_used(only_used(options)); }), "accepted");
}

TEST(ReducerOptions, check_refuses_what_the_preset_ignores) {
  for (const Asked& row : asked()) expect_answer(row.preset, row.change, row.refusal);
  const std::vector<std::pair<std::string, Change>> of_auto = {
      {"profile", [](auto& o) { o.profile = Profile{}; }},
      {"choice.presets", [](auto& o) { o.choice.presets = {"topka"}; }},
      {"choice.overrides = dense", [](auto& o) { o.choice.overrides = Overrides::parse("dense"); }},
      {"choice.coarsest = fp32", [](auto& o) { o.choice.coarsest = ValueCoding::fp32; }},
      {"choice.preference = 0.5", [](auto& o) { o.choice.preference = 0.5; }},
      {"choice.review = 0", [](auto& o) { o.choice.review = false; }}};
  for (const auto& [option, change] : of_auto) {
    expect_answer("circulant", change, option + " with preset circulant, but only auto uses it");
    expect_answer("auto", change, "");
  }
  const std::vector<std::pair<std::string, Change>> of_sparse = {
      {"density = 0.5", [](auto& o) { o.density = 0.5; }},
      {"warmup", [](auto& o) { o.warmup = dense_warmup(3); }},
      {"adaptive", [](auto& o) { o.adaptive.target_share = 0.5; }},
      {"selector = exact", [](auto& o) { o.selector = "exact"; }},
      {"selector = reused", [](auto& o) { o.selector = "reused", o.allreduce.tau_prime = 2; }},
      {"selector = reused", [](auto& o) { o.selector = "reused", o.allreduce.thresholds = ThresholdRule::paper; }},
      {"decay = 0.5", [](auto& o) { o.decay = 0.5F; }}};
  for (const auto& [option, change] : of_sparse) {
    expect_answer("dense", change, option + " with preset dense, which sends all values in every step");
    expect_answer("topka", change, "");
  }
}

TEST(ReducerOptions, constructors_check_and_name_auto_among_the_presets) {
  run_world("threads", 1, [](Communicator& comm) {
    const ReducerOptions ignored{.preset = "topka", .allreduce = {.tau = 8}};
    const std::string text = "reducer: tau = 8 with preset topka, but only oktopk uses it";
    EXPECT_EQ(message_of([&] { Reducer(comm, 10, ignored); }), text);
    EXPECT_EQ(message_of([&] { NodeReducer(comm, 10, ignored); }), "rank 0: " + text);
    EXPECT_EQ(message_of([&] { BucketedReducer(comm, std::vector<int>{10}, ignored); }), text);
    const std::string unknown = message_of([&] { Reducer(comm, 10, {.preset = "best"}); });
    EXPECT_NE(unknown.find("slots, auto"), std::string::npos) << unknown;
    EXPECT_EQ(Reducer(comm, 0).step({}).size(), 0u);
  });
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
