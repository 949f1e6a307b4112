// SPDX-License-Identifier: Apache-2.0
// The checks in front of every transport, and the life of a started exchange.
#include "oktopk/comm/communicator.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/flight.h"

namespace oktopk {

namespace {

std::size_t size_of(const Send& send) { return send.bytes.size(); }
std::size_t size_of(const Recv& recv) { return recv.size; }

template <class Message>
MessageCount count(std::span<const Message> messages, int self) {
  MessageCount count;
  for (const Message& message : messages) {
    if (message.peer == self) continue;
    ++count.messages;
    count.bytes += size_of(message);
  }
  return count;
}

}  // namespace

MessageCount count_sent(std::span<const Send> sends, int self) { return count(sends, self); }
MessageCount count_received(std::span<const Recv> recvs, int self) { return count(recvs, self); }

Pending::~Pending() {
  if (comm_ == nullptr || comm_->is_forked()) return;
  comm_->abandon(ticket_);
  comm_->flight()->end(operation_, {}, FlightState::abandoned);
}

void Pending::wait() {
  require(comm_ != nullptr, "wait: this exchange was already waited for");
  Communicator& comm = *std::exchange(comm_, nullptr);
  comm.refuse_child();
  const Communicator::Inside inside(comm);
  FlightRecorder& flight = *comm.flight();
  const auto begin = std::chrono::steady_clock::now();
  try {
    comm.finish(ticket_);
  } catch (const std::exception& error) {
    flight.end(operation_, recvs_, FlightState::failed);
    flight.note_error(error.what());
    throw;
  }
  const auto end = flight.end(operation_, recvs_, FlightState::done);
  comm.count_wait(recvs_, end - begin);
}

Communicator::Communicator() : flight_(std::make_shared<FlightRecorder>()) {}
Communicator::~Communicator() = default;

const std::shared_ptr<FlightRecorder>& Communicator::flight() {
  flight_line();
  return flight_;
}

FlightLine& Communicator::flight_line() {
  if (line_ == nullptr)
    line_ = flight_->open({.name = "world", .rank = rank(), .size = size(), .transport = std::string(transport())});
  return *line_;
}

void Communicator::join_flight(Communicator& whole, std::string name, std::span<const int> ranks) {
  require(line_ == nullptr, "join_flight: this communicator has a record already");
  FlightLine line{.name = std::move(name), .rank = rank(), .size = size(), .transport = std::string(transport())};
  const FlightLine& outer = whole.flight_line();
  for (const int r : ranks) line.ranks.push_back(outer.ranks.empty() ? r : outer.ranks[static_cast<std::size_t>(r)]);
  flight_ = whole.flight_;
  line_ = flight_->open(std::move(line));
}

void Communicator::share_flight(Communicator& inner) {
  flight_ = inner.flight();
  line_ = inner.line_;
}

std::unique_ptr<Communicator> Communicator::as_part(std::unique_ptr<Communicator> part, int color,
                                                    std::span<const int> ranks) {
  FlightLine& mine = flight_line();
  part->join_flight(*this, text_of(mine.name, '/', mine.parts++, ':', color), ranks);
  return part;
}

void Communicator::refuse_child() const {
  if (is_forked())
    fail<UsageError>(transport(), ": this process was forked from rank ", rank(),
                     ", whose communicator it cannot use: ",
                     "make the communicator, and the Reducer on it, in the process that uses them");
}

Pending Communicator::start(std::span<const Send> sends, std::span<Recv> recvs) {
  refuse_child();
  const Inside inside(*this);
  const int P = size();
  for (const Send& send : sends)
    require(send.peer >= 0 && send.peer < P, "start: send to rank ", send.peer, " in a world of size ", P);
  for (Recv& recv : recvs) {
    require(recv.peer >= 0 && recv.peer < P, "start: receive from rank ", recv.peer, " in a world of size ", P);
    recv.size = 0;
  }
  FlightLine& line = flight_line();
  const std::uint64_t operation = flight_->begin(line, sends, recvs);
  Pending pending(*this, begin_recorded(operation, sends, recvs), operation, recvs);
  const MessageCount sent = count_sent(sends, rank());
  sent_.messages += sent.messages;
  sent_.bytes += sent.bytes;
  return pending;
}

std::uint64_t Communicator::begin_recorded(std::uint64_t operation, std::span<const Send> sends,
                                           std::span<Recv> recvs) {
  try {
    return begin(sends, recvs);
  } catch (const std::exception& error) {
    flight_->end(operation, {}, FlightState::failed);
    flight_->note_error(error.what());
    throw;
  }
}

void Communicator::count_wait(std::span<const Recv> recvs, Duration time) {
  waited_.all += time;
  waited_.by_peer.resize(static_cast<std::size_t>(size()));
  const int self = rank();
  const auto others = std::ranges::count_if(recvs, [&](const Recv& recv) { return recv.peer != self; });
  for (const Recv& recv : recvs)
    if (recv.peer != self) waited_.by_peer[static_cast<std::size_t>(recv.peer)] += time / others;
}

void Communicator::expel() noexcept {
  const auto end = std::chrono::steady_clock::now() + kLeaveTime;
  while (inside_ > 0 && std::chrono::steady_clock::now() < end) {
    kill();  // again: the thread may just have begun
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Communicator::kill() noexcept {
  try {
    abandon(begin({}, {}));
  } catch (...) {
    // begin() throws if the communicator is dead already.
  }
}

}  // namespace oktopk
