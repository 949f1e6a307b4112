// SPDX-License-Identifier: Apache-2.0
// Events are kept up to the bound, from many threads, and survive packing and merging.
#include "oktopk/trace/trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "oktopk/base/error.h"
#include "tests/support/message.h"

namespace oktopk::trace_test {
namespace {

using namespace std::chrono_literals;

Trace::Clock::time_point at(std::chrono::nanoseconds time) {
  return Trace::Clock::time_point(std::chrono::duration_cast<Trace::Clock::duration>(time));
}

TEST(Trace, events_beyond_the_bound_are_dropped_and_counted) {
  Trace trace(3);
  for (int i = 0; i < 5; ++i) trace.record(0, 0, "e" + std::to_string(i), "c", at(1s), at(2s));
  EXPECT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace.dropped(), 2u);
  const std::string json = trace.to_json();
  expect_contains(json, R"("dropped":2)");
  expect_contains(json, "\"e2\"");
  EXPECT_EQ(json.find("\"e3\""), std::string::npos);
}

TEST(Trace, arguments_are_bounded_too) {
  Trace trace(2);
  const std::vector<TraceArg> many(2 * Trace::kArgsPerEvent, TraceArg{"a", 1});
  trace.record(0, 0, "full", "c", at(1s), at(2s), many);
  trace.record(0, 0, "one more", "c", at(1s), at(2s), std::span(many).first(1));
  EXPECT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace.dropped(), 1u);
  trace.record(0, 0, "none", "c", at(1s), at(2s));
  EXPECT_EQ(trace.size(), 2u);
}

TEST(Trace, many_threads_record_every_event) {
  Trace trace;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string name = "n" + std::to_string(i % 7);
        Span span(TraceRow(&trace, t), name, "c");
        span.arg("i", i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.size(), 2000u);
  EXPECT_EQ(trace.dropped(), 0u);
  const std::string json = trace.to_json();
  for (int t = 0; t < 4; ++t)
    EXPECT_EQ(count_of(json, R"("pid":)" + std::to_string(t) + R"(,"tid":0,"args":{"i":)"), 500u);
}

TEST(Trace, merged_events_are_those_of_both_shifted) {
  Trace one, two;
  one.record(0, 0, "mine", "c", at(5s), at(6s));
  const TraceArg args[] = {{"bytes", 7}, {"preset", "oktopk"}};
  two.record(3, 1, "theirs", "mine", at(1s), at(3s), args);
  two.name_thread(1, "exchange");
  one.merge(two.pack(), 10s);
  const std::string json = one.to_json();
  EXPECT_EQ(one.size(), 2u);
  EXPECT_NE(json.find(R"({"name":"theirs","cat":"mine","ph":"X","ts":6000000.000,)"
                      R"("dur":2000000.000,"pid":3,"tid":1,)"
                      R"("args":{"bytes":7,"preset":"oktopk"}})"),
            std::string::npos)
      << json;
  expect_contains(json, R"("args":{"name":"exchange"})");
}

TEST(Trace, merge_adds_what_was_dropped_and_ignores_the_bound) {
  Trace one(1), two(1);
  for (Trace* trace : {&one, &two})
    for (int i = 0; i < 3; ++i) trace->record(0, 0, "e", "c", at(1s), at(2s));
  one.merge(two.pack());
  EXPECT_EQ(one.size(), 2u);
  EXPECT_EQ(one.dropped(), 4u);
}

TEST(Trace, merge_of_other_bytes_is_refused_and_changes_nothing) {
  Trace trace;
  trace.record(0, 0, "e", "c", at(1s), at(2s));
  const std::string before = trace.to_json();
  Bytes bytes = trace.pack();
  bytes.back() ^= std::byte{1};
  EXPECT_NE(message_of([&] { trace.merge(bytes); }), "accepted");
  bytes.resize(10);
  EXPECT_NE(message_of([&] { trace.merge(bytes); }), "accepted");
  EXPECT_EQ(trace.to_json(), before);
}

TEST(Trace, merge_of_times_that_are_too_far_away_is_refused) {
  Trace other, trace;
  const auto far = at(std::chrono::nanoseconds(std::int64_t{1} << 61));
  other.record(0, 0, "e", "c", at(1s), far);
  trace.merge(other.pack());
  expect_error("too far away", [&] { trace.merge(other.pack(), 1ns); });
  expect_error("too far away", [&] { trace.merge(other.pack(), -10000h * 100); });
  EXPECT_EQ(trace.size(), 1u);
}

TEST(Span, without_a_trace_does_nothing) {
  Span span({}, "step", "reducer");
  span.arg("k", 3);
  PhaseTimer timer({}, "reducer");
  EXPECT_GE(timer.lap("phase"), 0);
}

TEST(Span, that_an_exception_ends_says_so) {
  Trace trace;
  try {
    const Span failing(TraceRow(&trace, 2), "step", "c");
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    const Span fine(TraceRow(&trace, 2), "after", "c");
  }
  EXPECT_EQ(count_of(trace.to_json(), "failed"), 1u);
  EXPECT_EQ(trace.size(), 2u);
}

TEST(TraceRow, takes_the_communicators_rank_unless_one_is_given) {
  Trace trace;
  EXPECT_EQ(TraceRow(&trace).on_rank(3).rank, 3);
  EXPECT_EQ(TraceRow(&trace, 5).on_rank(3).rank, 5);
  EXPECT_EQ(TraceRow(&trace, 5).on_thread(2).thread, 2);
  EXPECT_FALSE(TraceRow());
}

TEST(PhaseTimer, laps_follow_each_other_without_a_gap) {
  Trace trace;
  PhaseTimer timer(TraceRow(&trace, 0), "c");
  timer.lap("first");
  timer.lap("second", {{"k", 4}});
  const std::string json = trace.to_json();
  EXPECT_LT(json.find("first"), json.find("second"));
  expect_contains(json, R"("k":4)");
}

// The file that viewers read: its exact bytes for a small trace, texts and numbers that JSON cannot take as they are,
// and the order of events.

TEST(TraceJson, of_nothing_is_an_empty_list) {
  EXPECT_EQ(Trace().to_json(), "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":0},\"traceEvents\":[\n]}\n");
}

TEST(TraceJson, of_a_small_trace_is_this) {
  Trace trace;
  const TraceArg args[] = {{"k", 12}, {"preset", "circulant"}};
  trace.record(1, 0, "select", "reducer", at(1'002'050ns), at(1'003'057ns));
  trace.record(0, 2, "step", "reducer", at(1'000'000ns), at(1'004'000ns), args);
  EXPECT_EQ(trace.to_json(),
            R"({"displayTimeUnit":"ms","otherData":{"dropped":0},"traceEvents":[
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"name":"thread_name","ph":"M","pid":0,"tid":2,"args":{"name":"thread 2"}},
{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}},
{"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"main"}},
{"name":"step","cat":"reducer","ph":"X","ts":0.000,"dur":4.000,"pid":0,"tid":2,"args":{"k":12,"preset":"circulant"}},
{"name":"select","cat":"reducer","ph":"X","ts":2.050,"dur":1.007,"pid":1,"tid":0,"args":{}}
]}
)");
}

// argument() is what the JSON of a trace with the one argument `arg` says of it.
std::string argument(const TraceArg& arg) {
  Trace trace;
  trace.record(0, 0, "e", "c", at(0s), at(1s), {&arg, 1});
  const std::string json = trace.to_json();
  const std::size_t begin = json.rfind("\"args\":{") + 8;
  return json.substr(begin, json.rfind("}}\n") - begin);
}

TEST(TraceJson, texts_are_escaped) {
  EXPECT_EQ(argument({"a\"b\\c", "\n\x01\x1f"}), R"("a\"b\\c":"\u000a\u0001\u001f")");
  EXPECT_EQ(argument({"é", "\xF0\x9F\x99\x82 €"}), "\"é\":\"\xF0\x9F\x99\x82 €\"");
}

TEST(TraceJson, numbers_are_as_json_wants_them) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  const std::pair<TraceArg, const char*> kNumbers[] = {
      {{"a", 1'000'000}, "1000000"},
      {{"a", -3}, "-3"},
      {{"a", 0.1}, "0.1"},
      {{"a", 1e300}, "1e+300"},
      {{"a", nan}, "null"},
      {{"a", infinite}, "null"},
      {{"a", std::uint64_t{1} << 52U}, "4503599627370496"},
  };
  for (const auto& [arg, text] : kNumbers) EXPECT_EQ(argument(arg), std::string(R"("a":)") + text);
}

TEST(TraceJson, a_span_comes_before_those_inside_it) {
  Trace trace;
  trace.record(0, 0, "inner", "c", at(1s), at(2s));
  trace.record(0, 0, "outer", "c", at(1s), at(3s));
  const std::string json = trace.to_json();
  EXPECT_LT(json.find("outer"), json.find("inner"));
}

TEST(TraceJson, write_gives_the_same_or_says_why_not) {
  Trace trace;
  trace.record(0, 0, "e", "c", at(1s), at(2s));
  const std::string file = testing::TempDir() + "/oktopk_trace_json_test.json";
  trace.write(file);
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), trace.to_json());
  std::remove(file.c_str());
  EXPECT_EQ(message_of([&] { trace.write("/no such folder/t.json"); }), "trace: cannot write /no such folder/t.json");
}

}  // namespace
}  // namespace oktopk::trace_test
