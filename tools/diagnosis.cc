// SPDX-License-Identifier: Apache-2.0
#include "tools/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
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

constexpr std::size_t kMostDifferences = 5;

std::string in_words(const FlightOperation& o) {
  const std::string what = o.label.empty() ? std::string("an exchange") : o.label;
  return o.communicator == "world" ? fmt::format("{} of step {}", what, o.step)
                                   : fmt::format("{} of step {} on {}", what, o.step, o.communicator);
}

class Examination {
 public:
  Examination(const std::vector<Dump>& dumps, double stall) : dumps_(dumps), stall_(stall) {
    for (const Dump& dump : dumps) by_rank_[dump.rank] = &dump;
  }

  Diagnosis run() {
    for (const Dump& dump : dumps_) find_waits(dump);
    name_first_failure();
    compare_messages();
    explain_waits();
    name_absent();
    describe_ranks();
    out_.is_fine = out_.findings.empty();
    for (const std::string& remark : remarks_) out_.findings.push_back(remark);
    return std::move(out_);
  }

 private:
  using MessageKey = std::tuple<std::string, int, int, std::uint64_t>;  // communicator, from, to, ordinal
  struct Seen {
    const Dump* dump;
    const FlightOperation* operation;
    const FlightMessage* message;
  };

  const Dump* dump_of(int rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }

  // The number in the whole of rank `peer` of a communicator; -1: unknown.
  int whole_rank(const FlightLine& line, int peer) const {
    if (!line.ranks.empty()) return line.ranks[static_cast<std::size_t>(peer)];
    if (line.name == "world") return peer;
    for (const Dump& dump : dumps_) {
      const FlightLine* other = dump.find(line.name);
      if (other != nullptr && other->rank == peer) return dump.rank;
    }
    return -1;
  }

  // Whether the peer has started its side of the message; false where nobody can know.
  bool peer_has_started(const FlightLine& line, const FlightMessage& m) const {
    const Dump* peer = dump_of(whole_rank(line, m.peer));
    const FlightLine* theirs = peer == nullptr ? nullptr : peer->find(line.name);
    if (theirs == nullptr || theirs->size != line.size) return false;
    const auto me = static_cast<std::size_t>(line.rank);
    return (m.is_send ? theirs->received : theirs->sent)[me] > m.ordinal;
  }

  double seconds_of(const Dump& dump, const FlightOperation& o) const {
    return 1e-9 * static_cast<double>((o.end == 0 ? dump.flight.now : o.end) - o.begin);
  }
  bool counts(const Dump& dump, const FlightOperation& o) const {
    return o.state != FlightState::started || seconds_of(dump, o) >= stall_;
  }

  // Sends count only where no receive explains the wait: most transports end a send early.
  void find_waits(const Dump& dump) {
    for (const FlightOperation& o : dump.flight.operations) {
      const FlightLine* line = dump.find(o.communicator);
      if (o.state == FlightState::done || line == nullptr || o.messages.empty()) continue;
      bool is_explained = add_waits(dump, o, *line, false);
      is_explained = is_explained || add_waits(dump, o, *line, true);
      if (!is_explained && counts(dump, o) && o.state != FlightState::abandoned)
        remarks_.push_back(
            fmt::format("rank {}: all messages of {} were started by both sides, but it is not over: "
                        "they travel, or the network lost them",
                        dump.rank, in_words(o)));
    }
  }

  bool add_waits(const Dump& dump, const FlightOperation& o, const FlightLine& line, bool sends) {
    bool is_any = false;
    for (const FlightMessage& m : o.messages) {
      const int peer = whole_rank(line, m.peer);
      const bool has_arrived = !m.is_send && m.bytes > 0;
      if (m.is_send != sends || has_arrived || peer < 0 || peer == dump.rank || peer_has_started(line, m)) continue;
      is_any = true;
      if (counts(dump, o)) waits_[dump.rank].insert(peer);
    }
    return is_any;
  }

  void name_first_failure() {
    const auto wall_of = [](const Dump* d) { return d->flight.wall - (d->flight.now - d->flight.error_time); };
    const Dump* first = nullptr;
    for (const Dump& dump : dumps_)
      if (!dump.flight.error.empty() && (first == nullptr || wall_of(&dump) < wall_of(first))) first = &dump;
    if (first == nullptr) return;
    out_.findings.push_back(
        fmt::format("rank {} failed first, in step {}: {}", first->rank, first->flight.step, first->flight.error));
  }

  // The two sides of a message must agree on what it is for.
  void compare_messages() {
    std::map<MessageKey, Seen> sent;
    visit_messages([&](const Seen& seen, const FlightLine& line) {
      const FlightMessage& m = *seen.message;
      if (m.is_send) sent[{line.name, line.rank, m.peer, m.ordinal}] = seen;
    });
    std::set<std::tuple<std::string, int, int>> told;  // a difference of two ranks has others in its wake
    visit_messages([&](const Seen& seen, const FlightLine& line) {
      const FlightMessage& m = *seen.message;
      if (m.is_send) return;
      const auto other = sent.find({line.name, m.peer, line.rank, m.ordinal});
      if (other == sent.end() || told.contains({line.name, m.peer, line.rank})) return;
      const std::string text = difference(other->second, seen);
      if (text.empty()) return;
      told.insert({line.name, m.peer, line.rank});
      if (told.size() <= kMostDifferences) out_.findings.push_back(text);
    });
  }

  template <class Visit>
  void visit_messages(const Visit& visit) const {
    for (const Dump& dump : dumps_)
      for (const FlightOperation& o : dump.flight.operations)
        if (const FlightLine* line = dump.find(o.communicator); line != nullptr)
          for (const FlightMessage& m : o.messages) visit({&dump, &o, &m}, *line);
  }

  static std::string difference(const Seen& sent, const Seen& received) {
    const FlightOperation& a = *sent.operation;
    const FlightOperation& b = *received.operation;
    if (a.label != b.label || a.step != b.step)
      return fmt::format(
          "the ranks do different things: rank {} sent message {} to rank {} in {}, rank {} expects it "
          "in {}",
          sent.dump->rank, sent.message->ordinal, received.dump->rank, in_words(a), received.dump->rank, in_words(b));
    if (sent.message->bytes > received.message->capacity)
      return fmt::format("sizes differ in {}: rank {} sends {} bytes to rank {}, which has room for {}", in_words(a),
                         sent.dump->rank, sent.message->bytes, received.dump->rank, received.message->capacity);
    return {};
  }

  // All ranks that wait for `rank`, directly or for somebody who does.
  std::vector<int> waiters_of(int rank) const {
    std::set<int> found = {rank};
    for (std::size_t before = 0; before != found.size();) {
      before = found.size();
      for (const auto& [waiter, missing] : waits_)
        if (std::ranges::any_of(missing, [&](int m) { return found.contains(m); })) found.insert(waiter);
    }
    found.erase(rank);
    return {found.begin(), found.end()};
  }

  // The ends of the chains: ranks that others wait for, and that wait for nobody. Without an end there is a circle.
  void explain_waits() {
    std::set<int> ends;
    for (const auto& [waiter, missing] : waits_)
      for (const int rank : missing)
        if (!waits_.contains(rank)) ends.insert(rank);
    for (const int rank : ends) {
      const std::vector<int> waiters = waiters_of(rank);
      out_.findings.push_back(fmt::format("{} {} for rank {}; {}", name_ranks(waiters),
                                          waiters.size() == 1 ? "waits" : "wait", rank, state_of_missing(rank)));
    }
    if (!ends.empty() || waits_.empty()) return;
    std::vector<int> circle;
    for (const auto& [waiter, missing] : waits_) circle.push_back(waiter);
    out_.findings.push_back(name_ranks(circle) + " wait for each other in a circle: they make different calls");
  }

  std::string state_of_missing(int rank) const {
    const Dump* dump = dump_of(rank);
    if (dump == nullptr) return fmt::format("rank {} left no dump: it died, or nobody asked it for one", rank);
    const FlightSnapshot& f = dump->flight;
    std::string text = fmt::format("rank {} ", rank);
    text += f.error.empty() ? "waits for nobody: it computes, or hangs outside of oktopk" : "failed: " + f.error;
    text += fmt::format("; it is {} step {}", f.in_step ? "in" : "behind", f.step);
    const std::uint64_t latest = latest_step();
    if (latest != f.step) text += fmt::format(", where others are in step {}", latest);
    if (f.operations.empty()) return text + "; it has made no exchange";
    const FlightOperation& last = f.operations.back();
    const std::int64_t end = last.end == 0 ? last.begin : last.end;
    return text + fmt::format("; its last operation was {}, {:.1f} s before its dump", in_words(last),
                              dump->seconds_before(end));
  }

  std::uint64_t latest_step() const {
    std::uint64_t latest = 0;
    for (const Dump& dump : dumps_) latest = std::max(latest, dump.flight.step);
    return latest;
  }

  void name_absent() {
    std::vector<int> absent;
    for (int rank = 0; rank < dumps_.front().size; ++rank)
      if (dump_of(rank) == nullptr) absent.push_back(rank);
    if (!absent.empty()) remarks_.push_back("there is no dump of " + name_ranks(absent));
  }

  std::set<int> waits_of(int rank) const {
    const auto found = waits_.find(rank);
    return found == waits_.end() ? std::set<int>{} : found->second;
  }

  void describe_ranks() {
    out_.ranks = nlohmann::json::array();
    for (const Dump& dump : dumps_) {
      const FlightSnapshot& f = dump.flight;
      nlohmann::json row = {{"rank", dump.rank},    {"host", dump.host},
                            {"pid", dump.pid},      {"step", f.step},
                            {"in_step", f.in_step}, {"operations", f.operations_begun},
                            {"error", f.error},     {"waits_for", waits_of(dump.rank)}};
      if (!f.operations.empty()) {
        const FlightOperation& last = f.operations.back();
        row["last"] = in_words(last);
        row["state"] = std::string(to_string(last.state));
        row["seconds"] = last.state == FlightState::started ? seconds_of(dump, last) : dump.seconds_before(last.end);
      }
      out_.ranks.push_back(row);
    }
  }

  const std::vector<Dump>& dumps_;
  double stall_;
  std::map<int, const Dump*> by_rank_;
  std::map<int, std::set<int>> waits_;  // rank -> those that it waits for
  std::vector<std::string> remarks_;    // no trouble by themselves
  Diagnosis out_;
};

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

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNames = 32;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > kMostNames)
    return fmt::format("ranks {} and {} others", fmt::join(ranks.begin(), ranks.begin() + kMostNames, ", "),
                       ranks.size() - kMostNames);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

nlohmann::json Diagnosis::json() const {
  return {{"tool", "oktopk doctor"}, {"fine", is_fine}, {"findings", findings}, {"ranks", ranks}};
}

Diagnosis diagnose(const std::vector<Dump>& dumps, double stall) { return Examination(dumps, stall).run(); }

}  // namespace oktopk
