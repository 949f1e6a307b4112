// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/dump.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

FlightLine line_of(const nlohmann::json& json) {
  FlightLine line{.name = json.at("name"), .rank = json.at("rank"), .size = json.at("size")};
  line.ranks = json.at("ranks").get<std::vector<int>>();
  line.sent = json.at("sent").get<std::vector<std::uint64_t>>();
  line.received = json.at("received").get<std::vector<std::uint64_t>>();
  const auto P = static_cast<std::size_t>(line.size);
  require(line.size >= 1 && line.size <= kMostRanks && line.rank >= 0 && line.rank < line.size, "rank ", line.rank,
          " of ", line.size, " in communicator ", line.name);
  require((line.ranks.empty() || line.ranks.size() == P) && line.sent.size() == P && line.received.size() == P,
          "the lists of communicator ", line.name, " do not have ", P, " numbers");
  return line;
}

FlightMessage message_of(const nlohmann::json& json, bool is_send, const FlightLine* line) {
  FlightMessage m{.peer = json.at(0), .is_send = is_send, .ordinal = json.at(1), .bytes = json.at(2)};
  if (!is_send) m.capacity = json.at(3);
  require(line == nullptr || (m.peer >= 0 && m.peer < line->size), "a message with rank ", m.peer);
  return m;
}

FlightOperation operation_of(const nlohmann::json& json, const Dump& dump) {
  FlightOperation o{.number = json.at("number"),
                    .communicator = json.at("communicator"),
                    .label = json.at("label"),
                    .step = json.at("step"),
                    .begin = json.at("begin_ns"),
                    .end = json.at("end_ns"),
                    .state = state_of(json.at("state")),
                    .messages = {},
                    .forgotten = json.at("forgotten")};
  const FlightLine* line = dump.find(o.communicator);
  for (const auto& m : json.at("receives")) o.messages.push_back(message_of(m, false, line));
  for (const auto& m : json.at("sends")) o.messages.push_back(message_of(m, true, line));
  return o;
}

Dump dump_of(const nlohmann::json& json) {
  require(json.value("format", "") == "oktopk-flight", "no dump of a flight recorder");
  const int version = json.at("version");
  require(version == kDumpVersion, "a dump of version ", version, "; this command reads version ", kDumpVersion);
  Dump dump{.file = {},
            .library = json.at("library"),
            .host = json.at("host"),
            .transport = json.at("transport"),
            .wire = json.at("wire"),
            .rank = json.at("rank"),
            .size = json.at("size"),
            .pid = json.at("pid"),
            .flight = {}};
  require(dump.size >= 1 && dump.rank >= 0 && dump.rank < dump.size, "rank ", dump.rank, " of ", dump.size);
  FlightSnapshot& f = dump.flight;
  f.now = json.at("monotonic_ns");
  f.wall = json.at("wall_ns");
  f.step = json.at("step");
  f.in_step = json.at("in_step");
  f.step_ended = json.at("step_ended_ns");
  f.error = json.at("error");
  f.error_time = json.at("error_ns");
  f.operations_begun = json.at("operations_begun");
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

Dump read_dump(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  require(in.good(), file, ": cannot be read");
  try {
    Dump dump = dump_of(nlohmann::json::parse(in));
    dump.file = file;
    return dump;
  } catch (const nlohmann::json::exception& error) {
    fail<UsageError>(file, ": not a dump of oktopk, or damaged: ", error.what());
  } catch (const UsageError& error) {
    fail<UsageError>(file, ": not a dump of oktopk, or damaged: ", error.what());
  }
}

std::vector<Dump> read_dumps(const std::vector<std::string>& paths) {
  std::vector<Dump> dumps;
  for (const std::string& path : paths)
    for (const std::string& file : files_of(path)) dumps.push_back(read_dump(file));
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

}  // namespace oktopk
