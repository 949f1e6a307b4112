// SPDX-License-Identifier: Apache-2.0
// Collecting and merging events (trace.h). Texts are stored once; an event is numbers.
#include "oktopk/trace/trace.h"

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"

namespace oktopk {
namespace {

std::int64_t nanoseconds(Trace::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

Trace::TextId Trace::intern(std::string_view text) {
  const auto found = ids_.find(text);
  if (found != ids_.end()) return found->second;
  const auto id = static_cast<TextId>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

void Trace::record(int rank, int thread, std::string_view name, std::string_view category, Clock::time_point begin,
                   Clock::time_point end, std::span<const TraceArg> args) {
  const std::lock_guard lock(mutex_);
  if (events_.size() >= most_events_ || args_.size() + args.size() > kArgsPerEvent * most_events_) {
    ++dropped_;
    return;
  }
  events_.push_back({intern(name), intern(category), rank, thread, nanoseconds(begin.time_since_epoch()),
                     nanoseconds(end.time_since_epoch()), args_.size(), args.size()});
  for (const TraceArg& arg : args)
    args_.push_back({intern(arg.name), arg.is_text ? intern(arg.text) : kNumber, arg.value});
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

// What pack() writes, read and checked.
struct Trace::Packed {
  std::vector<std::string> texts;
  std::vector<Event> events;
  std::vector<Arg> args;
  std::map<int, std::string> thread_names;
  std::uint64_t dropped = 0;
};

Bytes Trace::pack() const {
  const std::lock_guard lock(mutex_);
  StateWriter out;
  out.put(dropped_);
  out.put(std::uint64_t{thread_names_.size()});
  for (const auto& [thread, name] : thread_names_) {
    out.put(thread);
    out.put_text(name);
  }
  out.put(std::uint64_t{texts_.size()});
  for (const std::string& text : texts_) out.put_text(text);
  out.put(std::uint64_t{events_.size()});
  for (const Event& event : events_) {
    out.put(event.name);
    out.put(event.category);
    out.put(event.rank);
    out.put(event.thread);
    out.put(event.begin);
    out.put(event.end);
    out.put(std::uint64_t{event.args});
    for (std::size_t a = event.first_arg; a < event.first_arg + event.args; ++a) {
      out.put(args_[a].name);
      out.put(args_[a].text);
      out.put(args_[a].value);
    }
  }
  return out.seal();
}

Trace::Packed Trace::unpack(std::span<const std::byte> packed) {
  StateReader in(packed);
  Packed out;
  out.dropped = in.take<std::uint64_t>();
  for (auto names = in.take<std::uint64_t>(); names > 0; --names) {
    const int thread = in.take<int>();
    out.thread_names[thread] = in.take_text();
  }
  for (auto texts = in.take<std::uint64_t>(); texts > 0; --texts) out.texts.push_back(in.take_text());
  const auto take_text = [&] {
    const auto id = in.take<TextId>();
    require(id < out.texts.size(), "trace: text ", id, " of ", out.texts.size());
    return id;
  };
  for (auto events = in.take<std::uint64_t>(); events > 0; --events) {
    Event event{.name = take_text(), .category = take_text(), .first_arg = out.args.size()};
    event.rank = in.take<int>();
    event.thread = in.take<int>();
    event.begin = in.take<std::int64_t>();
    event.end = in.take<std::int64_t>();
    event.args = in.take<std::uint64_t>();
    for (std::size_t a = 0; a < event.args; ++a) {
      Arg arg{.name = take_text(), .text = in.take<TextId>()};
      require(arg.text == kNumber || arg.text < out.texts.size(), "trace: text ", arg.text, " of ", out.texts.size());
      arg.value = in.take<double>();
      out.args.push_back(arg);
    }
    out.events.push_back(event);
  }
  in.finish();
  return out;
}

void Trace::merge(std::span<const std::byte> packed, Clock::duration shift) {
  const Packed other = unpack(packed);
  const std::lock_guard lock(mutex_);
  std::vector<TextId> here;
  for (const std::string& text : other.texts) here.push_back(intern(text));
  for (Event event : other.events) {
    event.name = here[event.name];
    event.category = here[event.category];
    event.begin += nanoseconds(shift);
    event.end += nanoseconds(shift);
    event.first_arg += args_.size();
    events_.push_back(event);
  }
  for (Arg arg : other.args) {
    arg.name = here[arg.name];
    if (arg.text != kNumber) arg.text = here[arg.text];
    args_.push_back(arg);
  }
  for (const auto& [thread, name] : other.thread_names) thread_names_.try_emplace(thread, name);
  dropped_ += other.dropped;
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
    // Out of memory: the step matters, its picture does not.
  }
}

}  // namespace oktopk
