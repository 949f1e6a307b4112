// SPDX-License-Identifier: Apache-2.0
// Events become JSON when they are recorded, except for their times (trace.h): complete events ("ph": "X") with the
// rank as process, and metadata events ("ph": "M") that name it. The JSON is written by hand, because the library can
// be built without any JSON library.
#include "oktopk/trace/trace.h"

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <set>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/trace/json_text.h"

namespace oktopk {
namespace {

// Nanoseconds as microseconds.
void append_time(std::string& json, std::int64_t nanoseconds) {
  const std::string rest = std::to_string(nanoseconds % 1000);
  json += std::to_string(nanoseconds / 1000) + '.' + std::string(3 - rest.size(), '0') + rest;
}

std::string row_of(int rank, int thread) {
  return R"(,"pid":)" + std::to_string(rank) + R"(,"tid":)" + std::to_string(thread) + R"(,"args":{)";
}

void append_name(std::string& json, std::string_view kind, int rank, int thread, std::string_view name) {
  json += R"({"name":")" + std::string(kind) + R"(","ph":"M")" + row_of(rank, thread) + R"("name":)";
  append_json_text(json, name);
  json += "}},\n";
}

std::int64_t nanoseconds(Trace::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// A time of another clock by this one. Differences of two such times do not overflow.
std::int64_t shifted(std::int64_t time, Trace::Clock::duration shift) {
  constexpr std::int64_t kFurthest = std::int64_t{1} << 61;  // 73 years
  const auto is_near = [](std::int64_t t) { return t >= -kFurthest && t <= kFurthest; };
  const std::int64_t by = nanoseconds(shift);
  require(is_near(time) && is_near(by) && is_near(time + by), "trace: an event at ", time, " ns, shifted by ", by,
          " ns, is too far away");
  return time + by;
}

}  // namespace

void Trace::record(int rank, int thread, std::string_view name, std::string_view category, Clock::time_point begin,
                   Clock::time_point end, std::span<const TraceArg> args) {
  Event event{rank, thread, nanoseconds(begin.time_since_epoch()), nanoseconds(end.time_since_epoch()), {}, {}};
  event.head = R"({"name":)";
  append_json_text(event.head, name);
  event.head += R"(,"cat":)";
  append_json_text(event.head, category);
  for (const TraceArg& arg : args) {
    if (!event.args.empty()) event.args += ',';
    append_json_text(event.args, arg.name);
    event.args += ':';
    arg.is_text ? append_json_text(event.args, arg.text) : append_json_number(event.args, arg.value);
  }
  const std::lock_guard lock(mutex_);
  if (events_.size() >= most_events_ || args_ + args.size() > kArgsPerEvent * most_events_) {
    ++dropped_;
    return;
  }
  args_ += args.size();
  events_.push_back(std::move(event));
}

void Trace::name_thread(int thread, std::string_view name) {
  const std::lock_guard lock(mutex_);
  thread_names_[thread] = name;
}

std::size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

std::uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Trace::append_names(std::string& json) const {
  std::set<std::pair<int, int>> rows;
  for (const Event& event : events_) rows.insert({event.rank, event.thread});
  int named = -1;
  for (const auto& [rank, thread] : rows) {
    if (rank != named) append_name(json, "process_name", rank, 0, "rank " + std::to_string(rank));
    named = rank;
    const auto name = thread_names_.find(thread);
    const std::string otherwise = thread == 0 ? "main" : "thread " + std::to_string(thread);
    append_name(json, "thread_name", rank, thread, name != thread_names_.end() ? name->second : otherwise);
  }
}

std::string Trace::to_json() const {
  const std::lock_guard lock(mutex_);
  std::string json =
      R"({"displayTimeUnit":"ms","otherData":{"dropped":)" + std::to_string(dropped_) + "},\"traceEvents\":[\n";
  append_names(json);
  // Row by row, then by time; a span comes before the spans inside it.
  std::vector<const Event*> sorted;
  for (const Event& event : events_) sorted.push_back(&event);
  std::ranges::stable_sort(sorted, {}, [](const Event* e) {
    return std::array<std::int64_t, 4>{e->rank, e->thread, e->begin, -e->end};
  });
  const auto first = std::ranges::min_element(events_, {}, &Event::begin);
  for (const Event* event : sorted) {
    json += event->head + R"(,"ph":"X","ts":)";
    append_time(json, event->begin - first->begin);
    json += R"(,"dur":)";
    append_time(json, std::max<std::int64_t>(0, event->end - event->begin));
    json += row_of(event->rank, event->thread) + event->args + "}},\n";
  }
  if (json.ends_with(",\n")) json.erase(json.size() - 2, 1);  // the last comma
  return json + "]}\n";
}

void Trace::write(const std::string& file) const {
  std::ofstream out(file, std::ios::binary);
  out << to_json();
  out.close();
  require(out.good(), "trace: cannot write ", file);
}

Bytes Trace::pack() const {
  const std::lock_guard lock(mutex_);
  StateWriter out;
  out.put(dropped_);
  out.put(std::uint64_t{thread_names_.size()});
  for (const auto& [thread, name] : thread_names_) {
    out.put(thread);
    out.put_text(name);
  }
  out.put(std::uint64_t{events_.size()});
  for (const Event& event : events_) {
    out.put(event.rank);
    out.put(event.thread);
    out.put(event.begin);
    out.put(event.end);
    out.put_text(event.head);
    out.put_text(event.args);
  }
  return std::move(out).seal();
}

void Trace::merge(std::span<const std::byte> packed, Clock::duration shift) {
  StateReader in(packed);
  const auto dropped = in.take<std::uint64_t>();
  std::map<int, std::string> names;
  for (auto left = in.take<std::uint64_t>(); left > 0; --left) {
    const int thread = in.take<int>();
    names[thread] = in.take_text();
  }
  std::vector<Event> events;
  for (auto left = in.take<std::uint64_t>(); left > 0; --left) {
    Event event{.rank = in.take<int>(), .thread = in.take<int>(), .begin = 0, .end = 0, .head = {}, .args = {}};
    event.begin = shifted(in.take<std::int64_t>(), shift);
    event.end = shifted(in.take<std::int64_t>(), shift);
    event.head = in.take_text();
    event.args = in.take_text();
    events.push_back(std::move(event));
  }
  in.finish();
  const std::lock_guard lock(mutex_);
  std::move(events.begin(), events.end(), std::back_inserter(events_));
  thread_names_.merge(names);
  dropped_ += dropped;
}

Span::Span(const TraceRow& row, std::string_view name, std::string_view category)
    : row_(row), name_(name), category_(category) {
  if (!row_) return;
  exceptions_ = std::uncaught_exceptions();
  begin_ = Trace::Clock::now();
}

Span::~Span() {
  if (!row_) return;
  try {
    if (std::uncaught_exceptions() > exceptions_) args_.emplace_back("failed", 1);
    row_.record(name_, category_, begin_, Trace::Clock::now(), args_);
  } catch (...) {
    // Out of memory: a step without its event is better than no step.
  }
}

}  // namespace oktopk
