// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/dump.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr int kDumpVersion = 1;
constexpr int kMostRanks = 1 << 20;

FlightState state_of(const std::string& name) {
  for (const FlightState state : {FlightState::started, FlightState::done, FlightState::failed, FlightState::abandoned})
    if (to_string(state) == name) return state;
  fail<UsageError>("unknown state '", name, "'");
}

// A whole number that T can hold. nlohmann's own conversions wrap, and cut off fractions.
template <class T>
T whole(const nlohmann::json& json) {
  if (json.is_number_unsigned() && std::in_range<T>(json.get<std::uint64_t>()))
    return static_cast<T>(json.get<std::uint64_t>());
  if (json.is_number_integer() && !json.is_number_unsigned() && std::in_range<T>(json.get<std::int64_t>()))
    return static_cast<T>(json.get<std::int64_t>());
  fail<UsageError>(json.is_number() ? json.dump() : json.type_name(), " is no whole number in the range of its field");
}

// A time; two of them can be subtracted, and a third one from the result.
std::int64_t time_of(const nlohmann::json& json) {
  constexpr std::int64_t kLatest = (std::int64_t{1} << 62) - 1;
  const auto time = whole<std::int64_t>(json);
  require(time >= 0 && time <= kLatest, "a time of ", time, " ns");
  return time;
}

template <class T>
std::vector<T> wholes(const nlohmann::json& json) {
  std::vector<T> out;
  for (const auto& item : json) out.push_back(whole<T>(item));
  return out;
}

FlightLine line_of(const nlohmann::json& json) {
  FlightLine line{.name = json.at("name"), .rank = whole<int>(json.at("rank")), .size = whole<int>(json.at("size"))};
  line.ranks = wholes<int>(json.at("ranks"));
  line.sent = wholes<std::uint64_t>(json.at("sent"));
  line.received = wholes<std::uint64_t>(json.at("received"));
  const auto P = static_cast<std::size_t>(line.size);
  require(line.size >= 1 && line.size <= kMostRanks && line.rank >= 0 && line.rank < line.size, "rank ", line.rank,
          " of ", line.size, " in communicator ", line.name);
  require((line.ranks.empty() || line.ranks.size() == P) && line.sent.size() == P && line.received.size() == P,
          "the lists of communicator ", line.name, " do not have ", P, " numbers");
  return line;
}

FlightMessage message_of(const nlohmann::json& json, bool is_send, const FlightLine* line) {
  FlightMessage m{.peer = whole<int>(json.at(0)),
                  .is_send = is_send,
                  .ordinal = whole<std::uint64_t>(json.at(1)),
                  .bytes = whole<std::uint64_t>(json.at(2))};
  if (!is_send) m.capacity = whole<std::uint64_t>(json.at(3));
  require(line == nullptr || (m.peer >= 0 && m.peer < line->size), "a message with rank ", m.peer);
  return m;
}

FlightOperation operation_of(const nlohmann::json& json, const Dump& dump) {
  FlightOperation o{.number = whole<std::uint64_t>(json.at("number")),
                    .communicator = json.at("communicator"),
                    .label = json.at("label"),
                    .step = whole<std::uint64_t>(json.at("step")),
                    .begin = time_of(json.at("begin_ns")),
                    .end = time_of(json.at("end_ns")),
                    .state = state_of(json.at("state")),
                    .messages = {},
                    .forgotten = whole<std::uint64_t>(json.at("forgotten"))};
  const FlightLine* line = dump.find(o.communicator);
  for (const auto& m : json.at("receives")) o.messages.push_back(message_of(m, false, line));
  for (const auto& m : json.at("sends")) o.messages.push_back(message_of(m, true, line));
  return o;
}

Dump dump_of(const nlohmann::json& json) {
  require(json.value("format", "") == "oktopk-flight", "no dump of a flight recorder");
  const int version = whole<int>(json.at("version"));
  require(version == kDumpVersion, "a dump of version ", version, "; this command reads version ", kDumpVersion);
  Dump dump{.file = {},
            .library = json.at("library"),
            .host = json.at("host"),
            .transport = json.at("transport"),
            .wire = whole<int>(json.at("wire")),
            .rank = whole<int>(json.at("rank")),
            .size = whole<int>(json.at("size")),
            .pid = whole<std::int64_t>(json.at("pid")),
            .flight = {}};
  require(dump.size >= 1 && dump.size <= kMostRanks && dump.rank >= 0 && dump.rank < dump.size, "rank ", dump.rank,
          " of ", dump.size);
  FlightSnapshot& f = dump.flight;
  f.now = time_of(json.at("monotonic_ns"));
  f.wall = time_of(json.at("wall_ns"));
  f.step = whole<std::uint64_t>(json.at("step"));
  f.in_step = json.at("in_step");
  f.step_ended = time_of(json.at("step_ended_ns"));
  f.error = json.at("error");
  f.error_time = time_of(json.at("error_ns"));
  f.operations_begun = whole<std::uint64_t>(json.at("operations_begun"));
  for (const auto& line : json.at("communicators")) f.communicators.push_back(line_of(line));
  for (const auto& operation : json.at("operations")) f.operations.push_back(operation_of(operation, dump));
  return dump;
}

std::vector<std::string> files_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("oktopk-flight-") && name.ends_with(".json")) files.push_back(entry.path());
  }
  require(!files.empty(), path, ": this folder has no files oktopk-flight-*.json");
  std::ranges::sort(files);
  return files;
}

}  // namespace

const FlightLine* Dump::find(const std::string& communicator) const {
  const auto found = std::ranges::find(flight.communicators, communicator, &FlightLine::name);
  return found == flight.communicators.end() ? nullptr : &*found;
}

Dump parse_dump(const std::string& text, const std::string& file) {
  try {
    Dump dump = dump_of(nlohmann::json::parse(text));
    dump.file = file;
    return dump;
  } catch (const nlohmann::json::exception& error) {
    fail<UsageError>(file, ": not a dump of oktopk, or damaged: ", error.what());
  } catch (const UsageError& error) {
    fail<UsageError>(file, ": not a dump of oktopk, or damaged: ", error.what());
  }
}

Dump read_dump(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  require(in.good(), file, ": cannot be read");
  return parse_dump(std::string(std::istreambuf_iterator<char>(in), {}), file);
}

std::vector<Dump> of_one_run(std::vector<Dump> dumps) {
  require(!dumps.empty(), "no dumps were given");
  std::ranges::stable_sort(dumps, {}, &Dump::rank);
  for (std::size_t i = 1; i < dumps.size(); ++i) {
    const Dump& a = dumps[i - 1];
    const Dump& b = dumps[i];
    require(a.size == b.size, a.file, " is of a world of ", a.size, " ranks, ", b.file, " of one of ", b.size);
    require(a.rank != b.rank, a.file, " and ", b.file, " are both of rank ", a.rank, ": give those of one run");
  }
  return dumps;
}

std::vector<Dump> read_dumps(const std::vector<std::string>& paths) {
  std::vector<Dump> dumps;
  for (const std::string& path : paths)
    for (const std::string& file : files_of(path)) dumps.push_back(read_dump(file));
  return of_one_run(std::move(dumps));
}

}  // namespace oktopk
