// SPDX-License-Identifier: Apache-2.0
// Which arrived message is which receive's, for the transport "mpi": the n-th from a rank is the
// n-th receive's from that rank. A receive is posted to MPI when its message is there and has a
// known size, never before: Open MPI 4.1 writes a message that is too large behind the end of the
// buffer that it was given, and a receive that is not posted need not be cancelled.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "oktopk/comm/mpi_operation.h"

namespace oktopk {

// A queue that keeps its memory.
template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == items_.size(); }
  void push(const T& item) { items_.push_back(item); }
  T pop() {
    const T item = items_[first_++];
    if (empty()) items_.clear(), first_ = 0;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
};

class MpiInbox {
 public:
  struct Receive {
    MpiOperation* operation;
    std::size_t i;  // its message
  };
  struct Arrived {
    MPI_Message handle;
    std::size_t size;
  };

  void resize(std::size_t peers) { lanes_.resize(peers); }

  // The message for this receive, if it is here; otherwise the receive waits for it.
  std::optional<Arrived> take(int peer, const Receive& receive) {
    Lane& lane = lanes_[static_cast<std::size_t>(peer)];
    if (!lane.arrived.empty()) {
      --unclaimed_;
      return lane.arrived.pop();
    }
    lane.waiting.push(receive);
    ++waiting_;
    return std::nullopt;
  }
  // The receive that waits for this message, if one does; otherwise the message waits.
  std::optional<Receive> take(int peer, const Arrived& arrived) {
    Lane& lane = lanes_[static_cast<std::size_t>(peer)];
    if (lane.waiting.empty()) {
      lane.arrived.push(arrived);
      ++unclaimed_;
      return std::nullopt;
    }
    --waiting_;
    return lane.waiting.pop();
  }

  bool is_awaited() const { return waiting_ > 0; }
  bool has_unclaimed() const { return unclaimed_ > 0; }

 private:
  struct Lane {
    Fifo<Receive> waiting;
    Fifo<Arrived> arrived;
  };
  std::vector<Lane> lanes_;  // by peer
  std::size_t waiting_ = 0;
  std::size_t unclaimed_ = 0;
};

}  // namespace oktopk
