// SPDX-License-Identifier: Apache-2.0
// Spans of time for a viewer, in the Trace Event Format of Chrome, which ui.perfetto.dev and chrome://tracing show
// (docs/observability.md). A Trace collects them in memory; only write() writes a file. All ranks and threads of a
// process may use one Trace; gather_trace() of comm/collectives.h merges those of other processes.
// COST: a lock, a clock and about 150 bytes per event. Without a trace (TraceRow{}) a Span reads no clock. A full trace
// drops later events and counts them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "oktopk/base/bytes.h"

namespace oktopk {

// A number or a text (UTF-8) that belongs to an event. A view: record() copies the text.
struct TraceArg {
  template <class T>
  requires std::is_arithmetic_v<T> TraceArg(std::string_view its_name, T number)
      : name(its_name), value(static_cast<double>(number)) {}
  TraceArg(std::string_view its_name, std::string_view words) : name(its_name), text(words), is_text(true) {}

  std::string_view name;
  double value = 0;
  std::string_view text;
  bool is_text = false;
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;               // the same for all processes of a host
  static constexpr std::size_t kMostEvents = 1'000'000;  // about 150 MB with their arguments
  static constexpr std::size_t kArgsPerEvent = 8;        // on average, when it is full

  explicit Trace(std::size_t most_events = kMostEvents) : most_events_(most_events) {}

  // From any thread.
  void record(int rank, int thread, std::string_view name, std::string_view category, Clock::time_point begin,
              Clock::time_point end, std::span<const TraceArg> args = {});
  // The name of thread number `thread` on all ranks; 0 is "main" unless named.
  void name_thread(int thread, std::string_view name);

  std::size_t size() const;
  std::uint64_t dropped() const;

  // {"traceEvents": [...]}, times in microseconds since the first event; "otherData" has the number of dropped events.
  std::string to_json() const;
  // UsageError when the file cannot be written.
  void write(const std::string& file) const;

  // pack() gives all events as bytes; merge() adds those of another Trace to this one, each `shift` later, even beyond
  // the bound. UsageError, with nothing changed, for bytes that pack() did not give.
  Bytes pack() const;
  void merge(std::span<const std::byte> packed, Clock::duration shift = {});

 private:
  struct Event {
    int rank = 0;
    int thread = 0;
    std::int64_t begin = 0;  // nanoseconds of the clock
    std::int64_t end = 0;
    std::string head;  // name and category, as JSON
    std::string args;  // as JSON
  };
  void append_names(std::string& json) const;

  const std::size_t most_events_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Event> events_;
  std::size_t args_ = 0;  // number of arguments of all events
  std::map<int, std::string> thread_names_;
  std::uint64_t dropped_ = 0;
};

// The destination of events: a trace, or none, and the row of the picture. Trace* converts to it.
struct TraceRow {
  TraceRow() = default;
  TraceRow(Trace* to, int its_rank = -1, int its_thread = 0) : trace(to), rank(its_rank), thread(its_thread) {}
  explicit operator bool() const { return trace != nullptr; }

  // The same row, on rank `r` unless the row has a rank.
  TraceRow on_rank(int r) const { return {trace, rank < 0 ? r : rank, thread}; }
  TraceRow on_thread(int t) const { return {trace, rank, t}; }
  void record(std::string_view name, std::string_view category, Trace::Clock::time_point begin,
              Trace::Clock::time_point end, std::span<const TraceArg> args = {}) const {
    if (trace != nullptr) trace->record(rank, thread, name, category, begin, end, args);
  }

  Trace* trace = nullptr;  // must outlive the row
  int rank = -1;           // -1: the rank of the communicator
  int thread = 0;
};

// An event from here to the end of the scope; if an exception ends it, it has the argument "failed".
class Span {
 public:
  // REQUIRES: name, category and texts of arguments live as long as the span.
  Span(const TraceRow& row, std::string_view name, std::string_view category);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  template <class T>
  void arg(std::string_view name, T value) {
    if (row_) args_.emplace_back(name, value);
  }

 private:
  TraceRow row_;
  std::string_view name_, category_;
  int exceptions_ = 0;
  Trace::Clock::time_point begin_;
  std::vector<TraceArg> args_;
};

// A stopwatch whose laps are events.
class PhaseTimer {
 public:
  PhaseTimer(const TraceRow& row, std::string_view category) : row_(row), category_(category) {}

  // Seconds since the last lap.
  double lap(std::string_view phase, std::initializer_list<TraceArg> args = {}) {
    const auto now = Trace::Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    row_.record(phase, category_, last_, now, std::span(args.begin(), args.size()));
    last_ = now;
    return seconds;
  }

 private:
  TraceRow row_;
  std::string_view category_;
  Trace::Clock::time_point last_ = Trace::Clock::now();
};

}  // namespace oktopk
