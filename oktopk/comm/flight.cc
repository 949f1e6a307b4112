// SPDX-License-Identifier: Apache-2.0
// Recording (flight.h). A lock that nobody else holds costs about as much as the atomics of a lock-free ring, and
// readers are rare.
#include "oktopk/comm/flight.h"

#include <algorithm>
#include <array>
#include <utility>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
std::int64_t flight_now() { return nanoseconds_of(std::chrono::steady_clock::now()); }

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

}  // namespace oktopk
