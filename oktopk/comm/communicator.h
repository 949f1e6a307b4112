// SPDX-License-Identifier: Apache-2.0
// P ranks that exchange byte messages by one verb, start(sends, recvs). All collectives and algorithms are written over
// this verb. A transport implements begin, finish, abandon and split, and host() if its ranks can share a host.
//
// Matching: the messages from one rank to another arrive in the order in which they were started. A receive states a
// capacity; the real size is in Recv::size after the wait. A message larger than the capacity is a CommError on the
// receiver. Buffers, and the span of Recv, must stay alive and untouched until wait() returns or throws, or until the
// exchange is abandoned. Several exchanges may be in flight; they may be waited for in any order.
// Timeouts: wait() throws CommError when the exchange is not complete within timeout(). After any CommError the
// communicator is dead.
// Threads: one thread at a time per communicator object (each rank has its own object). A thread other than the one
// that made the object may use it if require_any_thread() does not throw.
// The end: see decision 0030. In a child of fork() an exchange is a UsageError, and the destructor sends nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oktopk {

struct Send {
  int peer = 0;
  std::span<const std::byte> bytes;
};

struct Recv {
  int peer = 0;
  std::span<std::byte> buffer;  // its size is the capacity
  std::size_t size = 0;         // set by wait(): the bytes that arrived
};

// Messages between a rank and others, and their bytes; messages to oneself cross no wire.
struct MessageCount {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  friend MessageCount operator-(const MessageCount& a, const MessageCount& b) {
    return {a.messages - b.messages, a.bytes - b.bytes};
  }
};
// The messages of one exchange of rank `self`; the received sizes are known after the wait.
MessageCount count_sent(std::span<const Send> sends, int self);
MessageCount count_received(std::span<const Recv> recvs, int self);

// The time that a rank spent in Pending::wait(). The wait of an exchange with several peers is divided among them.
struct WaitTimes {
  std::chrono::nanoseconds all{0};
  std::vector<std::chrono::nanoseconds> by_peer = {};  // empty before the first wait
};

class Communicator;
class FlightRecorder;
struct FlightLine;

// One started exchange. Destroying it before wait() abandons the exchange, which leaves the communicator dead.
class Pending {
 public:
  Pending(Communicator& comm, std::uint64_t ticket, std::uint64_t operation, std::span<const Recv> recvs)
      : comm_(&comm), ticket_(ticket), operation_(operation), recvs_(recvs) {}
  Pending(Pending&& other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)),
        ticket_(other.ticket_),
        operation_(other.operation_),
        recvs_(other.recvs_) {}
  Pending& operator=(Pending&&) = delete;
  ~Pending();

  void wait();

 private:
  Communicator* comm_;
  std::uint64_t ticket_;
  std::uint64_t operation_;  // of the flight recorder
  std::span<const Recv> recvs_;
};

class Communicator {
 public:
  using Duration = std::chrono::nanoseconds;
  static constexpr Duration kDefaultTimeout = std::chrono::seconds(60);

  Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator();

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;
  virtual Duration timeout() const = 0;

  // Collective: ranks with the same color form a new communicator, ordered by (key, rank).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Collective: the lowest of the ranks that share a host, and so memory, with this one. Equal on the ranks of a host,
  // so it can be a color for split(). A transport that cannot know the hosts takes each rank as a host of its own.
  virtual int host() { return rank(); }

  // UsageError if only the thread that made the communicator may use it; the text says what to do.
  virtual void require_any_thread() const {}

  // Starts all sends and receives at once; cannot deadlock by call order.
  Pending start(std::span<const Send> sends, std::span<Recv> recvs);
  void exchange(std::span<const Send> sends, std::span<Recv> recvs) { start(sends, recvs).wait(); }

  // Counts traffic of this communicator only, not of communicators split from it.
  const MessageCount& sent_so_far() const { return sent_; }
  // The same for the time that was waited for messages.
  const WaitTimes& waited_so_far() const { return waited_; }

  // Leaves the communicator dead, for a caller who cannot go on (received bytes that make no sense). Local; peers learn
  // of it at once if the transport can tell them, at their timeout otherwise.
  virtual void kill() noexcept;
  // Whether any thread may call kill(), and ends the wait of another one: transports tcp and threads.
  virtual bool can_kill_waits() const { return false; }

  // Whether this is a child of fork(), and the communicator is its parent's. Transports without threads and connections
  // of their own do not know.
  virtual bool is_forked() const { return false; }
  // In a child of fork(): closes the inherited descriptors, so that peers see the end of the parent. Takes no lock and
  // sends nothing.
  virtual void close_in_child() noexcept {}

  // The record of the last operations (flight.h), shared with the parts of split(). Any thread may read it.
  const std::shared_ptr<FlightRecorder>& flight();
  // This communicator in it; shared with decorators.
  FlightLine& flight_line();
  // Records from now on in the recorder of `whole`, as communicator `name`, which is equal on all ranks. ranks[r] is
  // the number in `whole` of rank r; empty: unknown. REQUIRES: before the first exchange.
  void join_flight(Communicator& whole, std::string name, std::span<const int> ranks = {});

  // For transports and decorators. begin() starts an exchange and names it with a ticket; finish() blocks until it is
  // complete; abandon() withdraws it so that its buffers may be freed.
  virtual std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) = 0;
  virtual void finish(std::uint64_t ticket) = 0;
  virtual void abandon(std::uint64_t ticket) noexcept = 0;

 protected:
  // For decorators: records as `inner`.
  void share_flight(Communicator& inner);
  // For split(): the new part, which joins the flight of this communicator.
  std::unique_ptr<Communicator> as_part(std::unique_ptr<Communicator> part, int color, std::span<const int> ranks = {});

  // For the destructors of transports: when another thread is inside an exchange, kills the communicator, and returns
  // when that thread has left it (with a CommError), or after kLeaveTime.
  void expel() noexcept;

 private:
  friend class Pending;
  static constexpr auto kLeaveTime = std::chrono::seconds(10);
  // A thread is in start() or wait().
  class Inside {
   public:
    explicit Inside(Communicator& comm) : count_(comm.inside_) { ++count_; }
    ~Inside() { --count_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::atomic<int>& count_;
  };
  std::uint64_t begin_recorded(std::uint64_t operation, std::span<const Send> sends, std::span<Recv> recvs);

  void refuse_child() const;
  void count_wait(std::span<const Recv> recvs, Duration time);

  MessageCount sent_;
  WaitTimes waited_;
  std::shared_ptr<FlightRecorder> flight_;
  std::shared_ptr<FlightLine> line_;  // null before the first use
  std::atomic<int> inside_ = 0;
};

}  // namespace oktopk
