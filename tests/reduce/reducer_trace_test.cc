// SPDX-License-Identifier: Apache-2.0
// Traced steps: bitwise the same results and states, options and messages as without a trace; every
// rank and phase is there, spans nest, and bytes add up.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "tests/support/training.h"

namespace oktopk::reducer_trace_test {
namespace {

constexpr Index n = 400;
constexpr std::size_t k = 16;
constexpr std::uint64_t kSteps = 4;

struct Ran {
  std::uint64_t bits = 0;
  Bytes state;
  bool operator==(const Ran&) const = default;
};

template <class Make>
std::vector<Ran> run_steps(int P, Make make) {
  return gather_world("threads", P, [&](Communicator& comm) {
    const auto sync = make(comm);
    Ran ran;
    for (std::uint64_t step = 0; step < kSteps; ++step)
      ran.bits = fold(ran.bits, sync->step(make_input(Input::gaussian, n, comm.rank(), step, 1)));
    ran.state = sync->save();
    ran.bits = fold(ran.bits, sync->flush());
    return ran;
  });
}

// The spans of a trace, parsed by someone else's code.
std::vector<nlohmann::json> spans_of(const Trace& trace) {
  std::vector<nlohmann::json> spans;
  const auto file = nlohmann::json::parse(trace.to_json());
  for (const auto& event : file.at("traceEvents"))
    if (event.at("ph") == "X") spans.push_back(event);
  return spans;
}

// In nanoseconds: microseconds are not exact in a double.
long long nanoseconds(const nlohmann::json& x) { return std::llround(x.get<double>() * 1000); }

void expect_nested(const std::vector<nlohmann::json>& spans) {
  std::map<std::pair<int, int>, std::vector<long long>> open;  // ends, by row
  for (const auto& span : spans) {
    auto& ends = open[{span.at("pid"), span.at("tid")}];
    const long long begin = nanoseconds(span.at("ts"));
    const long long end = begin + nanoseconds(span.at("dur"));
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(end, ends.back()) << span;
    }
    ends.push_back(end);
  }
}

std::size_t count(const std::vector<nlohmann::json>& spans, int rank, int thread, const std::string& category,
                  const std::string& name) {
  return static_cast<std::size_t>(std::count_if(spans.begin(), spans.end(), [&](const auto& span) {
    return span.at("pid") == rank && span.at("tid") == thread && span.at("name") == name && span.at("cat") == category;
  }));
}

class ReducerTrace : public testing::TestWithParam<TestedMethod> {};

TEST_P(ReducerTrace, changes_no_bit_and_holds_every_phase_of_every_rank) {
  Trace trace;
  ReducerOptions traced = GetParam().options(k);
  traced.trace = &trace;
  EXPECT_EQ(describe(traced, n), describe(GetParam().options(k), n));
  const auto make = [](const ReducerOptions& options) {
    return [&](Communicator& comm) { return std::make_unique<Reducer>(comm, n, options); };
  };
  EXPECT_EQ(run_steps(3, make(traced)), run_steps(3, make(GetParam().options(k))));
  const auto spans = spans_of(trace);
  expect_nested(spans);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count(spans, rank, 0, "reducer", "flush"), 1u);
    for (const char* phase : {"step", "agree", "check", "notes"})
      EXPECT_EQ(count(spans, rank, 0, "reducer", phase), kSteps) << phase;
    for (const char* phase : {"select", "exchange", "settle"})
      EXPECT_EQ(count(spans, rank, 0, "reducer", phase), kSteps + 1) << phase;
    EXPECT_GT(count(spans, rank, 0, "message", "start"), 0u);
    EXPECT_EQ(count(spans, rank, 0, "message", "start"), count(spans, rank, 0, "message", "wait"));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, ReducerTrace, testing::ValuesIn(all_methods()),
                         [](const auto& tested) { return tested.param.name(); });

const TestedMethod kCirculant{"circulant", ResidualKind::owner_memory};

TEST(ReducerTraces, bytes_of_messages_add_up_to_those_of_steps) {
  Trace trace;
  ReducerOptions options = kCirculant.options(k);
  options.trace = &trace;
  run_steps(5, [&](Communicator& comm) { return std::make_unique<Reducer>(comm, n, options); });
  std::uint64_t stepped = 0, sent = 0, received = 0;
  for (const auto& span : spans_of(trace)) {
    const auto& args = span.at("args");
    if (span.at("cat") == "reducer" && args.contains("bytes")) stepped += args.at("bytes").get<std::uint64_t>();
    for (const auto& [name, value] : args.items()) {
      if (name.starts_with("to ")) sent += value.get<std::uint64_t>();
      if (name.starts_with("from ")) received += value.get<std::uint64_t>();
    }
  }
  EXPECT_GT(sent, 0u);
  EXPECT_EQ(sent, stepped);
  EXPECT_EQ(sent, received);
}

TEST(ReducerTraces, of_one_rank_alone_and_without_messages_work) {
  Trace trace;
  run_world("threads", 3, [&](Communicator& comm) {
    ReducerOptions options = kCirculant.options(k);
    if (comm.rank() == 1) options.trace = &trace;
    options.trace_messages = false;
    Reducer reducer(comm, n, options);
    reducer.step(gradient_of(reducer, 0));
  });
  const auto spans = spans_of(trace);
  for (const auto& span : spans) {
    EXPECT_EQ(span.at("pid"), 1);
    EXPECT_EQ(span.at("cat"), "reducer");
  }
  EXPECT_EQ(count(spans, 1, 0, "reducer", "step"), 1u);
}

TEST(NodeReducerTrace, changes_no_bit_and_calls_peers_by_their_ranks) {
  Trace trace;
  ReducerOptions traced = kCirculant.options(k);
  traced.trace = &trace;
  const auto make = [](const ReducerOptions& options) {
    return [&](Communicator& comm) { return std::make_unique<NodeReducer>(comm, n, options, NodeOptions{.group = 2}); };
  };
  EXPECT_EQ(run_steps(5, make(traced)), run_steps(5, make(kCirculant.options(k))));
  const auto spans = spans_of(trace);
  expect_nested(spans);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(count(spans, rank, 0, "node", "step"), kSteps);
    EXPECT_EQ(count(spans, rank, 0, "node", "inside"), 2 * kSteps);
    EXPECT_EQ(count(spans, rank, 0, "reducer", "step"), rank % 2 == 0 ? kSteps : 0u);
  }
  std::set<std::string> peers;  // of rank 2, in its node
  for (const auto& span : spans)
    if (span.at("pid") == 2 && span.at("cat") == "inside")
      for (const auto& [name, value] : span.at("args").items()) peers.insert(name);
  EXPECT_EQ(peers, (std::set<std::string>{"from 3", "to 3"}));
}

TEST(BucketedReducerTrace, changes_no_bit_and_buckets_have_the_exchanging_threads_row) {
  Trace trace;
  ReducerOptions traced = kCirculant.options(k);
  traced.trace = &trace;
  const auto make = [](const ReducerOptions& options) {
    return [&](Communicator& comm) {
      return std::make_unique<BucketedReducer>(comm, std::vector<Index>{100, 50, 250}, options,
                                               FusionOptions{.policy = FusionPolicy::tensor});
    };
  };
  EXPECT_EQ(run_steps(3, make(traced)), run_steps(3, make(kCirculant.options(k))));
  const auto spans = spans_of(trace);
  expect_nested(spans);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count(spans, rank, 0, "bucketed", "wait"), kSteps + 1);
    EXPECT_EQ(count(spans, rank, 1, "bucketed", "bucket"), 3 * (kSteps + 1));
    EXPECT_EQ(count(spans, rank, 1, "reducer", "step"), 3 * kSteps);
  }
  EXPECT_NE(trace.to_json().find("\"exchange\"}"), std::string::npos);
}

}  // namespace
}  // namespace oktopk::reducer_trace_test
