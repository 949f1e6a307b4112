// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

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
    compare_versions();
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
      if (counts(dump, o)) out_.waits.push_back({dump.rank, peer, seconds_of(dump, o), in_words(o)});
    }
    return is_any;
  }

  void compare_versions() {
    const Dump& first = dumps_.front();
    for (const Dump& other : dumps_)
      if (other.library != first.library || other.wire != first.wire)
        return out_.findings.push_back(
            fmt::format("rank {} runs oktopk {} with wire format {}, rank {} runs {} with {}", other.rank,
                        other.library, other.wire, first.rank, first.library, first.wire));
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

  std::set<int> missing_for(int rank) const {
    std::set<int> missing;
    for (const Wait& wait : out_.waits)
      if (wait.waiter == rank) missing.insert(wait.missing);
    return missing;
  }

  // All ranks that wait for `rank`, directly or for somebody who does.
  std::vector<int> waiters_of(int rank) const {
    std::set<int> found = {rank};
    for (std::size_t before = 0; before != found.size();) {
      before = found.size();
      for (const Wait& wait : out_.waits)
        if (found.contains(wait.missing)) found.insert(wait.waiter);
    }
    found.erase(rank);
    return {found.begin(), found.end()};
  }

  void explain_waits() {
    bool has_end = false;
    std::set<int> missing;
    for (const Wait& wait : out_.waits) missing.insert(wait.missing);
    for (const int rank : missing) {
      if (!missing_for(rank).empty()) continue;
      has_end = true;
      const std::vector<int> waiters = waiters_of(rank);
      out_.findings.push_back(fmt::format("{} {} for rank {}; {}", name_ranks(waiters),
                                          waiters.size() == 1 ? "waits" : "wait", rank, state_of_missing(rank)));
    }
    if (!has_end && !missing.empty()) out_.findings.push_back(describe_cycle(*missing.begin()));
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

  std::string describe_cycle(int rank) const {
    std::vector<int> path;
    while (std::ranges::find(path, rank) == path.end()) {
      path.push_back(rank);
      rank = *missing_for(rank).begin();
    }
    path.erase(path.begin(), std::ranges::find(path, rank));
    path.push_back(rank);
    std::string places;
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      const auto wait = std::ranges::find(out_.waits, path[i], &Wait::waiter);
      places += fmt::format("{}rank {} in {}", i == 0 ? "" : ", ", path[i], wait->operation);
    }
    return fmt::format("ranks wait for each other in a circle, {}: they make different calls ({})",
                       fmt::join(path, " -> "), places);
  }

  void name_absent() {
    std::vector<int> absent;
    for (int rank = 0; rank < dumps_.front().size; ++rank)
      if (dump_of(rank) == nullptr) absent.push_back(rank);
    if (!absent.empty()) remarks_.push_back("there is no dump of " + name_ranks(absent));
  }

  void describe_ranks() {
    out_.ranks = nlohmann::json::array();
    for (const Dump& dump : dumps_) {
      const FlightSnapshot& f = dump.flight;
      nlohmann::json row = {{"rank", dump.rank},    {"host", dump.host},
                            {"pid", dump.pid},      {"step", f.step},
                            {"in_step", f.in_step}, {"operations", f.operations_begun},
                            {"error", f.error},     {"waits_for", missing_for(dump.rank)}};
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
  std::vector<std::string> remarks_;  // no trouble by themselves
  Diagnosis out_;
};

}  // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNames = 32;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > kMostNames)
    return fmt::format("ranks {} and {} others", fmt::join(ranks.begin(), ranks.begin() + kMostNames, ", "),
                       ranks.size() - kMostNames);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

nlohmann::json Diagnosis::json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Wait& wait : waits)
    rows.push_back(
        {{"rank", wait.waiter}, {"waits_for", wait.missing}, {"seconds", wait.seconds}, {"operation", wait.operation}});
  return {{"tool", "oktopk doctor"}, {"fine", is_fine}, {"findings", findings}, {"ranks", ranks}, {"waits", rows}};
}

Diagnosis diagnose(const std::vector<Dump>& dumps, double stall) { return Examination(dumps, stall).run(); }

}  // namespace oktopk
