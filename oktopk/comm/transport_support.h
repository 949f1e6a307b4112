// SPDX-License-Identifier: Apache-2.0
// Parts that transports share: pooled operations named by tickets, polling, texts of errors, and the agreement on the
// parts of split().
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/flight.h"

namespace oktopk {

// A longer timeout would overflow when it is added to a time point.
inline constexpr Communicator::Duration kLongestTimeout = std::chrono::hours(24 * 365);

// How often a thread that waits calls `look` (TcpOptions).
inline constexpr auto kLookTime = std::chrono::milliseconds(100);

inline double in_seconds(Communicator::Duration duration) { return std::chrono::duration<double>(duration).count(); }

// For the error of a wait that timed out; `silent` may be in any order and have repetitions.
inline std::string no_answer(Communicator::Duration timeout, std::vector<int> silent) {
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  std::string text = text_of("no answer within ", in_seconds(timeout), " s from rank");
  for (const int rank : silent) text += text_of(rank == silent.front() ? " " : ", ", rank);
  return text;
}

// The part of a communicator that the ranks of one color form.
struct Part {
  std::vector<int> ranks;  // of the whole, ordered by (key, rank)
  int rank = 0;            // this rank's number in the part
  int number = 0;          // the largest `number` that any rank of the whole brought
};

// Collective: all ranks of `comm` tell each other the arguments of split().
inline Part agree_on_part(Communicator& comm, int color, int key, int number) {
  require(color >= 0, "split: color ", color, ", must not be negative");
  const FlightLabel label(comm, "split");
  struct Wish {
    int color, key, rank, number;
  };
  const Wish mine{color, key, comm.rank(), number};
  std::vector<Wish> all(static_cast<std::size_t>(comm.size()));
  Workspace work;
  allgather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
  std::ranges::stable_sort(all, {}, &Wish::key);
  Part part;
  for (const Wish& wish : all) {
    part.number = std::max(part.number, wish.number);
    if (wish.color != color) continue;
    if (wish.rank == comm.rank()) part.rank = static_cast<int>(part.ranks.size());
    part.ranks.push_back(wish.rank);
  }
  return part;
}

// Operations with stable addresses; a ticket is an index. An operation keeps its memory when it is given back, so that
// a warm pool allocates nothing.
template <class Operation>
class OperationPool {
 public:
  Operation& operator[](std::uint64_t ticket) { return *all_[ticket].operation; }

  std::uint64_t take() {
    auto entry = std::ranges::find(all_, false, &Entry::is_taken);
    if (entry == all_.end()) entry = all_.insert(entry, {std::make_unique<Operation>(), false});
    entry->is_taken = true;
    return static_cast<std::uint64_t>(entry - all_.begin());
  }
  void give_back(std::uint64_t ticket) { all_[ticket].is_taken = false; }

  // Calls visit(ticket) for every operation that was taken and not given back.
  template <class Visit>
  void for_each_taken(Visit visit) {
    for (std::uint64_t ticket = 0; ticket < all_.size(); ++ticket)
      if (all_[ticket].is_taken) visit(ticket);
  }

 private:
  struct Entry {
    std::unique_ptr<Operation> operation;
    bool is_taken;
  };
  std::vector<Entry> all_;
};

// Polls until is_done() or the timeout; false on timeout. Polls at full speed first, then yields, then sleeps, so that
// more ranks than cores progress.
template <class IsDone>
bool poll(Communicator::Duration timeout, IsDone is_done) {
  constexpr int kPollsBeforeYield = 100;
  constexpr auto kYieldingBeforeSleep = std::chrono::milliseconds(5);
  constexpr auto kSleep = std::chrono::microseconds(50);
  for (int i = 0; i < kPollsBeforeYield; ++i)
    if (is_done()) return true;
  const auto begin = std::chrono::steady_clock::now();
  while (!is_done()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > timeout) return false;
    waited < kYieldingBeforeSleep ? std::this_thread::yield() : std::this_thread::sleep_for(kSleep);
  }
  return true;
}

}  // namespace oktopk
