// SPDX-License-Identifier: Apache-2.0
// The flight recorder of a rank: a ring of its last operations, always on. Communicator::start() and Pending::wait()
// record into it, so every transport and every part of split() has it. A dump of it says, after an error or during a
// hang, which message this rank waits for; `oktopk doctor` compares the dumps of all ranks (docs/observability.md).
//
// Messages between two ranks keep their order, so the o-th message from a to b is the o-th that b receives from a: the
// number (`ordinal`) aligns the dumps of different ranks, whatever else each of them did.
// COST: two readings of the clock and two uncontended locks per operation; about 40 KB per rank; no allocation when
// warm. Any thread may read at any time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/comm/communicator.h"

namespace oktopk {

enum class FlightState : std::uint8_t { started, done, failed, abandoned };
std::string_view to_string(FlightState state);

// One communicator in a recorder: the whole, or a part of it.
struct FlightLine {
  std::string name;  // "world", or "world/0:1": color 1 of the first split; equal on all ranks of it
  int rank = 0;
  int size = 0;
  std::string transport = {};
  std::vector<int> ranks = {};  // by rank: the number in the whole; empty: unknown, or this is the whole
  std::uint64_t id = 0;

  // Messages started so far, by peer. The recorder's lock guards them.
  std::vector<std::uint64_t> sent = {};
  std::vector<std::uint64_t> received = {};

  // For the communicator's own thread: the label of what runs, and the number of splits so far.
  std::string_view outer = {};
  std::string_view inner = {};
  int parts = 0;
};

struct FlightMessage {
  int peer = 0;  // a rank of the communicator
  bool is_send = false;
  std::uint64_t ordinal = 0;   // messages between the two, in this direction, before it
  std::uint64_t bytes = 0;     // sent; or arrived, known when the operation is over
  std::uint64_t capacity = 0;  // of a receive
};

// As a snapshot has it.
struct FlightOperation {
  std::uint64_t number = 0;  // operations of this rank before it
  std::string communicator;
  std::string label;  // "circulant", "agree/allgather", ...; empty: the caller's own exchange
  std::uint64_t step = 0;
  std::int64_t begin = 0;  // nanoseconds of the steady clock
  std::int64_t end = 0;    // 0 while it runs
  FlightState state = FlightState::started;
  std::vector<FlightMessage> messages;  // receives, then sends
  std::uint64_t forgotten = 0;          // messages that the ring no longer holds
};

struct FlightSnapshot {
  std::int64_t now = 0;         // steady clock, nanoseconds
  std::int64_t wall = 0;        // system clock, nanoseconds since 1970
  std::uint64_t step = 0;       // the step that runs, or the last one that ran
  bool in_step = false;         // false: between two steps
  std::int64_t step_ended = 0;  // steady clock; 0: no step has ended
  std::uint64_t operations_begun = 0;
  std::string error;  // the first error; empty: none
  std::int64_t error_time = 0;
  std::vector<FlightLine> communicators;  // the whole first
  std::vector<FlightOperation> operations;
};

class FlightRecorder {
 public:
  static constexpr std::size_t kOperations = 256;
  static constexpr std::size_t kMessages = 1024;

  // From any thread.
  FlightSnapshot snapshot() const;
  // The snapshot as one JSON object, with host, process and versions (docs/observability.md has the fields).
  std::string to_json() const;
  // Writes it to a file, which appears at once and complete. UsageError when the file cannot be written.
  void write(const std::string& file) const;
  // The first error stays: later ones are its consequences.
  void note_error(std::string_view text);

  // A step of training, by its number from 1.
  void begin_step(std::uint64_t step);
  void end_step();
  // Seconds since a step ended; negative: none has.
  double idle_seconds() const;

  // For Communicator. begin() gives the number for end(), which records nothing when the ring has moved on, and
  // gives the time.
  std::shared_ptr<FlightLine> open(FlightLine line);
  std::uint64_t begin(FlightLine& line, std::span<const Send> sends, std::span<const Recv> recvs);
  std::chrono::steady_clock::time_point end(std::uint64_t number, std::span<const Recv> recvs, FlightState state);

 private:
  struct Operation {
    std::uint64_t number = 0;
    std::uint64_t line = 0;
    std::string_view outer, inner;
    std::uint64_t step = 0;
    std::int64_t begin = 0, end = 0;
    std::uint64_t first_message = 0;
    std::size_t receives = 0, messages = 0;
    FlightState state = FlightState::started;
  };

  void put(const FlightMessage& message) { messages_[next_message_++ % kMessages] = message; }
  bool holds_message(std::uint64_t m) const { return next_message_ - m <= kMessages; }
  std::uint64_t oldest() const { return begun_ > kOperations ? begun_ - kOperations : 0; }
  void forget_closed_lines();
  FlightOperation copy(const Operation& operation) const;

  mutable std::mutex mutex_;  // guards all of it
  std::vector<std::shared_ptr<FlightLine>> lines_;
  std::vector<Operation> operations_;    // ring
  std::vector<FlightMessage> messages_;  // ring
  std::uint64_t begun_ = 0, next_message_ = 0, next_line_ = 0;
  std::uint64_t step_ = 0;
  bool in_step_ = false;
  std::int64_t step_ended_ = 0;
  std::string error_;
  std::int64_t error_time_ = 0;
};

// Names what a communicator does from here to the end of the scope. The outermost and the innermost label are recorded.
// REQUIRES: the text lives for ever (a literal).
class FlightLabel {
 public:
  FlightLabel(Communicator& comm, std::string_view label) : line_(comm.flight_line()), before_(line_.inner) {
    is_outer_ = line_.outer.empty();
    (is_outer_ ? line_.outer : line_.inner) = label;
  }
  ~FlightLabel() {
    if (is_outer_) line_.outer = {};
    line_.inner = before_;
  }
  FlightLabel(const FlightLabel&) = delete;
  FlightLabel& operator=(const FlightLabel&) = delete;

 private:
  FlightLine& line_;
  std::string_view before_;
  bool is_outer_ = false;
};

}  // namespace oktopk
