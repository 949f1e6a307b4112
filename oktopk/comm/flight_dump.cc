// SPDX-License-Identifier: Apache-2.0
// A flight recorder's dump: one JSON object per rank (docs/observability.md has the fields). Peers and ordinals are
// arrays of numbers, [peer, ordinal, bytes] of a send and [peer, ordinal, bytes, capacity] of a receive, because a dump
// has up to 1024 of them.
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "oktopk/base/error.h"
#include "oktopk/base/version.h"
#include "oktopk/comm/flight.h"
#include "oktopk/trace/json_text.h"

namespace oktopk {
namespace {

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
