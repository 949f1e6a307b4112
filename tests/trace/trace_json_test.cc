// SPDX-License-Identifier: Apache-2.0
// The file that viewers read: its exact bytes for a small trace, texts and numbers that JSON cannot
// take as they are, and the order of events.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "oktopk/trace/trace.h"
#include "tests/support/message.h"

namespace oktopk::trace_json_test {
namespace {

using namespace std::chrono_literals;

Trace::Clock::time_point at(std::chrono::nanoseconds time) {
  return Trace::Clock::time_point(std::chrono::duration_cast<Trace::Clock::duration>(time));
}

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
  EXPECT_EQ(argument({"a", 1'000'000}), R"("a":1000000)");
  EXPECT_EQ(argument({"a", -3}), R"("a":-3)");
  EXPECT_EQ(argument({"a", 0.1}), R"("a":0.1)");
  EXPECT_EQ(argument({"a", std::uint64_t{1} << 52U}), R"("a":4503599627370496)");
  EXPECT_EQ(argument({"a", std::numeric_limits<double>::quiet_NaN()}), R"("a":null)");
  EXPECT_EQ(argument({"a", std::numeric_limits<double>::infinity()}), R"("a":null)");
  EXPECT_EQ(argument({"a", 1e300}), R"("a":1e+300)");
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
}  // namespace oktopk::trace_json_test
