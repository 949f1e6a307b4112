// SPDX-License-Identifier: Apache-2.0
// Traced steps: bitwise the same results and states, options and messages as without a trace; every
// rank and phase is there, spans nest, and bytes add up.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "oktopk/reduce/reducer_options.h"
#include "tests/reduce/conformance.h"

namespace oktopk::reducer_trace_test {
namespace {

using namespace conformance;  // NOLINT(google-build-using-namespace)

constexpr std::uint64_t kSteps = 4;

struct Ran {
  std::uint64_t bits = 0;
  Bytes state;
  bool operator==(const Ran&) const = default;
};

std::vector<Ran> run_steps(int P, const Case& c, TraceRow trace) {
  ReducerOptions options = c.method.options(k);
  options.trace = trace;
  EXPECT_EQ(describe(options, n), describe(c.method.options(k), n));
  return gather_world("threads", P, [&](Communicator& comm) {
    const Tested tested = c.kind.make(comm, options);
    Ran ran;
    for (std::uint64_t step = 0; step < kSteps; ++step)
      ran.bits = fold(ran.bits, tested->step(gradient_of(comm, step)));
    ran.state = tested->save();
    ran.bits = fold(ran.bits, tested->flush());
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

class Traces : public testing::TestWithParam<Case> {};

TEST_P(Traces, change_no_bit_and_hold_every_phase_of_every_rank) {
  const std::string& kind = GetParam().kind.name;
  constexpr int P = 5;
  Trace trace;
  EXPECT_EQ(run_steps(P, GetParam(), &trace), run_steps(P, GetParam(), {}));
  const auto spans = spans_of(trace);
  expect_nested(spans);
  for (int rank = 0; rank < P; ++rank) {
    // Buckets have the row of the exchanging thread; in nodes only the leaders have a Reducer.
    const int row = kind == "buckets" ? 1 : 0;
    const std::size_t reducers = kind == "buckets" ? 3 : kind == "nodes_of_2" && rank % 2 == 1 ? 0 : 1;
    for (const char* phase : {"step", "agree"}) EXPECT_EQ(count(spans, rank, row, "reducer", phase), reducers * kSteps);
    for (const char* phase : {"select", "exchange", "settle", "flush"}) {
      const std::size_t times = phase == std::string("flush") ? 1 : kSteps + 1;
      EXPECT_EQ(count(spans, rank, row, "reducer", phase), reducers * times) << phase;
    }
    EXPECT_GT(count(spans, rank, row, "message", "start"), 0u);
    EXPECT_EQ(count(spans, rank, row, "message", "start"), count(spans, rank, row, "message", "wait"));
    if (kind == "reducer") {
      for (const char* phase : {"check", "notes"}) EXPECT_EQ(count(spans, rank, 0, "reducer", phase), kSteps);
    } else if (kind == "buckets") {
      EXPECT_EQ(count(spans, rank, 0, "bucketed", "wait"), kSteps + 1);
      EXPECT_EQ(count(spans, rank, 1, "bucketed", "bucket"), 3 * (kSteps + 1));
    } else {
      EXPECT_EQ(count(spans, rank, 0, "node", "step"), kSteps);
      EXPECT_EQ(count(spans, rank, 0, "node", "inside"), 2 * kSteps);
    }
  }
  EXPECT_EQ(trace.to_json().find("\"exchange\"}") != std::string::npos, kind == "buckets");
  if (kind != "nodes_of_2") return;
  std::set<std::string> peers;  // of rank 2 in its node, by their ranks among all
  for (const auto& span : spans)
    if (span.at("pid") == 2 && span.at("cat") == "inside")
      for (const auto& [name, value] : span.at("args").items()) peers.insert(name);
  EXPECT_EQ(peers, (std::set<std::string>{"from 3", "to 3"}));
}

INSTANTIATE_TEST_SUITE_P(Synchronisers, Traces, testing::ValuesIn(cases([](const Kind& kind) {
                           return kind.name == "reducer" || kind.name == "buckets" || kind.name == "nodes_of_2";
                         })),
                         case_name);

const TestedMethod kCirculant{"circulant", ResidualKind::owner_memory};

TEST(ReducerTraces, bytes_of_messages_add_up_to_those_of_steps) {
  Trace trace;
  run_steps(5, {kinds()[0], kCirculant}, &trace);
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
    reducer.step(gradient_of(comm, 0));
  });
  const auto spans = spans_of(trace);
  for (const auto& span : spans) {
    EXPECT_EQ(span.at("pid"), 1);
    EXPECT_EQ(span.at("cat"), "reducer");
  }
  EXPECT_EQ(count(spans, 1, 0, "reducer", "step"), 1u);
}

}  // namespace
}  // namespace oktopk::reducer_trace_test
