// SPDX-License-Identifier: Apache-2.0
// Recording and dumps (flight.h). A lock that nobody else holds costs about as much as the atomics of a lock-free
// ring, and readers are rare.
// The dump is one JSON object per rank (docs/observability.md has the fields). Peers and ordinals are arrays of
// numbers, [peer, ordinal, bytes] of a send and [peer, ordinal, bytes, capacity] of a receive, because a dump has up to
// 1024 of them.
#include "oktopk/comm/flight.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/version.h"
#include "oktopk/trace/json_text.h"

namespace oktopk {
namespace {

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
std::int64_t flight_now() { return nanoseconds_of(std::chrono::steady_clock::now()); }

// Writes `"name":` and the separator before it.
class JsonObject {
 public:
  explicit JsonObject(std::string& json) : json_(json) { json_ += '{'; }

  template <class T>
  JsonObject& number(std::string_view name, T value) {
    key(name);
    json_ += std::to_string(value);
    return *this;
  }
  JsonObject& text(std::string_view name, std::string_view value) {
    key(name);
    append_json_text(json_, value);
    return *this;
  }
  JsonObject& flag(std::string_view name, bool value) {
    key(name);
    json_ += value ? "true" : "false";
    return *this;
  }
  template <class Items, class Append>
  JsonObject& list(std::string_view name, const Items& items, const Append& append) {
    key(name);
    json_ += '[';
    bool is_first = true;
    for (const auto& item : items) {
      if (!std::exchange(is_first, false)) json_ += ',';
      append(item);
    }
    json_ += ']';
    return *this;
  }
  template <class Items>
  JsonObject& numbers(std::string_view name, const Items& items) {
    return list(name, items, [&](auto item) { json_ += std::to_string(item); });
  }
  void close() { json_ += "}"; }

 private:
  void key(std::string_view name) {
    if (!std::exchange(is_first_, false)) json_ += ',';
    append_json_text(json_, name);
    json_ += ':';
  }

  std::string& json_;
  bool is_first_ = true;
};

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("unknown");
}

void append_line(std::string& json, const FlightLine& line) {
  JsonObject object(json);
  object.text("name", line.name).number("rank", line.rank).number("size", line.size);
  object.numbers("ranks", line.ranks).numbers("sent", line.sent).numbers("received", line.received).close();
}

void append_messages(JsonObject& object, std::string& json, const FlightOperation& operation, bool sends) {
  std::vector<FlightMessage> messages;
  for (const FlightMessage& message : operation.messages)
    if (message.is_send == sends) messages.push_back(message);
  object.list(sends ? "sends" : "receives", messages, [&](const FlightMessage& m) {
    json += text_of('[', m.peer, ',', m.ordinal, ',', m.bytes);
    if (!sends) json += text_of(',', m.capacity);
    json += ']';
  });
}

void append_operation(std::string& json, const FlightOperation& operation) {
  json += '\n';
  JsonObject object(json);
  object.number("number", operation.number).text("communicator", operation.communicator);
  object.text("label", operation.label).number("step", operation.step).text("state", to_string(operation.state));
  object.number("begin_ns", operation.begin).number("end_ns", operation.end);
  append_messages(object, json, operation, true);
  append_messages(object, json, operation, false);
  object.number("forgotten", operation.forgotten).close();
}

}  // namespace

std::string_view to_string(FlightState state) {
  constexpr std::array<std::string_view, 4> kNames = {"started", "done", "failed", "abandoned"};
  return kNames[static_cast<std::size_t>(state)];
}

std::shared_ptr<FlightLine> FlightRecorder::open(FlightLine line) {
  line.sent.assign(static_cast<std::size_t>(line.size), 0);
  line.received.assign(static_cast<std::size_t>(line.size), 0);
  const std::lock_guard lock(mutex_);
  operations_.resize(kOperations);
  messages_.resize(kMessages);
  forget_closed_lines();
  line.id = next_line_++;
  lines_.push_back(std::make_shared<FlightLine>(std::move(line)));
  return lines_.back();
}

// Parts that are gone, and of which the ring has no operation. The whole, which says who this rank is, stays.
void FlightRecorder::forget_closed_lines() {
  const auto is_recorded = [&](std::uint64_t id) {
    for (std::uint64_t number = oldest(); number < begun_; ++number)
      if (operations_[number % kOperations].line == id) return true;
    return false;
  };
  std::erase_if(lines_, [&](const std::shared_ptr<FlightLine>& line) {
    return line->id > 0 && line.use_count() == 1 && !is_recorded(line->id);
  });
}

std::uint64_t FlightRecorder::begin(FlightLine& line, std::span<const Send> sends, std::span<const Recv> recvs) {
  const std::int64_t now = flight_now();
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  operations_[number % kOperations] = {.number = number,
                                       .line = line.id,
                                       .outer = line.outer,
                                       .inner = line.inner,
                                       .step = step_,
                                       .begin = now,
                                       .first_message = next_message_,
                                       .receives = recvs.size(),
                                       .messages = recvs.size() + sends.size()};
  for (const Recv& recv : recvs)
    put({recv.peer, false, line.received[static_cast<std::size_t>(recv.peer)]++, 0, recv.buffer.size()});
  for (const Send& send : sends)
    put({send.peer, true, line.sent[static_cast<std::size_t>(send.peer)]++, send.bytes.size(), 0});
  return number;
}

std::chrono::steady_clock::time_point FlightRecorder::end(std::uint64_t number, std::span<const Recv> recvs,
                                                          FlightState state) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  Operation& operation = operations_[number % kOperations];
  if (operation.number != number) return now;
  operation.state = state;
  operation.end = nanoseconds_of(now);
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    const std::uint64_t m = operation.first_message + i;
    if (holds_message(m)) messages_[m % kMessages].bytes = recvs[i].size;
  }
  return now;
}

void FlightRecorder::note_error(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) return;
  error_ = text;
  error_time_ = flight_now();
}

void FlightRecorder::begin_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  in_step_ = true;
}

void FlightRecorder::end_step() {
  const std::lock_guard lock(mutex_);
  in_step_ = false;
  step_ended_ = flight_now();
}

double FlightRecorder::idle_seconds() const {
  const std::lock_guard lock(mutex_);
  return step_ended_ == 0 ? -1.0 : 1e-9 * static_cast<double>(flight_now() - step_ended_);
}

FlightOperation FlightRecorder::copy(const Operation& operation) const {
  const auto line = std::ranges::find(lines_, operation.line, [](const auto& l) { return l->id; });
  FlightOperation out{.number = operation.number,
                      .communicator = line == lines_.end() ? std::string() : (*line)->name,
                      .label = std::string(operation.outer),
                      .step = operation.step,
                      .begin = operation.begin,
                      .end = operation.end,
                      .state = operation.state,
                      .messages = {}};
  if (!operation.inner.empty()) out.label += "/" + std::string(operation.inner);
  for (std::uint64_t m = operation.first_message; m < operation.first_message + operation.messages; ++m) {
    if (holds_message(m))
      out.messages.push_back(messages_[m % kMessages]);
    else
      ++out.forgotten;
  }
  return out;
}

FlightSnapshot FlightRecorder::snapshot() const {
  using std::chrono::nanoseconds;
  using std::chrono::system_clock;
  FlightSnapshot out;
  const std::lock_guard lock(mutex_);
  out.now = flight_now();
  out.wall = std::chrono::duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
  out.step = step_;
  out.in_step = in_step_;
  out.step_ended = step_ended_;
  out.operations_begun = begun_;
  out.error = error_;
  out.error_time = error_time_;
  // Labels belong to other threads.
  for (const auto& line : lines_)
    out.communicators.push_back({.name = line->name,
                                 .rank = line->rank,
                                 .size = line->size,
                                 .transport = line->transport,
                                 .ranks = line->ranks,
                                 .id = line->id,
                                 .sent = line->sent,
                                 .received = line->received});
  for (std::uint64_t number = oldest(); number < begun_; ++number)
    out.operations.push_back(copy(operations_[number % kOperations]));
  return out;
}

std::string FlightRecorder::to_json() const {
  const FlightSnapshot s = snapshot();
  const FlightLine whole = s.communicators.empty() ? FlightLine{} : s.communicators.front();
  std::string json;
  JsonObject object(json);
  object.text("format", "oktopk-flight").number("version", 1);
  object.text("library", library_version()).number("wire", kWireVersion);
  object.number("rank", whole.rank).number("size", whole.size).text("transport", whole.transport);
  object.text("host", host_name()).number("pid", getpid());
  object.number("wall_ns", s.wall).number("monotonic_ns", s.now);
  object.number("step", s.step).flag("in_step", s.in_step).number("step_ended_ns", s.step_ended);
  object.text("error", s.error).number("error_ns", s.error_time);
  object.number("operations_begun", s.operations_begun);
  object.list("communicators", s.communicators, [&](const FlightLine& line) { append_line(json, line); });
  object.list("operations", s.operations, [&](const FlightOperation& o) { append_operation(json, o); });
  object.close();
  return json + "\n";
}

void FlightRecorder::write(const std::string& file) const {
  const std::string part = text_of(file, ".", getpid(), ".part");
  std::ofstream out(part, std::ios::binary);
  out << to_json();
  out.close();
  std::error_code error;
  if (out.good()) std::filesystem::rename(part, file, error);
  require(out.good() && !error, "flight: cannot write ", file);
}

}  // namespace oktopk
