// SPDX-License-Identifier: Apache-2.0
// The simulated network: worlds of ranks, frames on their way, connections that break. A world is the communicator of
// one epoch, or a part that was split from it. A seat is one rank's end of a world. Frames between two seats keep their
// order; everything else is up to the seeded generator. Every frame carries its world's number; a frame that reaches an
// address where another epoch lives by now is refused. A seat that dies tells its peers, with the reason.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/comm/communicator.h"
#include "tests/faults/plan.h"
#include "tests/faults/scheduler.h"

namespace oktopk::faults {

// One exchange in flight. It is complete when no receive is open.
struct Operation {
  std::size_t open = 0;
  Duration begun{};
  std::vector<int> peers;  // of its receives
};

struct Posted {
  Operation* operation;
  Recv* recv;
};

struct World;

struct Seat {
  World* world = nullptr;
  int rank = 0;
  int actor = -1;
  bool is_dead = false;
  bool is_closed = false;  // the communicator was destroyed
  std::string reason;
  std::vector<std::deque<Bytes>> inbox;    // by peer
  std::vector<std::deque<Posted>> posted;  // by peer
  std::vector<std::string> gone;           // by peer: why no more will come from it; empty while it may
  std::vector<Duration> last_arrival;      // by peer: of frames to it
};

struct World {
  std::uint64_t epoch = 0;
  std::uint64_t parent = 0;  // index of the world that it was split from; itself: none
  std::uint64_t index = 0;
  Duration timeout{};
  std::vector<int> names;  // by rank: the rank in the first world of the epoch, for texts
  std::vector<Seat> seats;
};

class Network {
 public:
  Network(Scheduler& scheduler, const Weather& weather) : scheduler_(scheduler), weather_(weather) {}

  // A world of the actors; from now on address r belongs to this epoch.
  World& open(const std::vector<int>& actors, Duration timeout);
  // The part that the ranks `members` of `whole` form in its split number `turn`; the first one to come makes it.
  World& part(World& whole, int turn, const std::vector<int>& members);

  void arm(int actor, const Fault& fault);  // strikes at that operation of the actor
  void disarm_flips(int actor);             // from now on its messages have no checksums

  void send(Seat& from, int to, std::span<const std::byte> bytes);
  void match(Seat& seat, int peer);
  // The seat is dead from now on, and so are those of its parts; the peers learn it.
  void die(Seat& seat, const std::string& reason);
  void close(Seat& seat);
  // Counts an operation; strikes. Returns how many of its sends happen: fewer than `sends` when the actor dies there.
  std::size_t enter(Seat& seat, std::size_t sends);
  // The reason why `operation` is not complete in time; it names the ranks that do not answer.
  std::string blame(const Seat& seat, const Operation& operation) const;
  void waits(const Seat& seat, const Operation* operation);

  Scheduler& scheduler() { return scheduler_; }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t struck() const { return struck_; }
  const std::set<int>& faulty() const { return faulty_; }  // names of ranks that had a fault in the newest epoch

 private:
  struct Frame {
    std::uint64_t world;
    int from, to;
    Bytes bytes;
  };
  struct Host {
    std::uint64_t operations = 0;
    std::vector<Fault> faults;
    bool may_flip = true;
    const Seat* waiting = nullptr;
    const Operation* operation = nullptr;
  };

  Duration latency();
  void deliver(const Frame& frame);
  void tell(World& world, int from, int to, const std::string& reason, Duration delay);
  void lose(Seat& seat, const std::string& reason);
  void strike(Seat& seat, const Fault& fault);
  void crash(int actor, bool is_silent);
  void break_connection(int name, int other);
  void repeat_old_frames();
  bool answers(int actor) const;
  void maybe_flip(Seat& from, Bytes& bytes);
  template <class Visit>
  void for_each_seat(int actor, Visit visit);

  Scheduler& scheduler_;
  Weather weather_;
  std::vector<std::unique_ptr<World>> worlds_;
  std::map<std::tuple<std::uint64_t, int, int>, std::uint64_t> parts_;  // (whole, turn, first member) -> index
  std::map<int, Host> hosts_;                                           // by actor
  std::deque<Frame> old_;                                               // some frames of the epoch before
  std::uint64_t epoch_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t struck_ = 0;
  std::set<int> faulty_;
};

}  // namespace oktopk::faults
