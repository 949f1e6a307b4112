// SPDX-License-Identifier: Apache-2.0
// The operations of an NCCL exchange in the flight recorder of the communicator that started it, as a communicator of
// their own. An operation counts as a message to and from every other rank. It begins when it is queued, and is over
// when the rank next looks and the GPU has passed it. Only nccl.cc uses it.
// COST: that of the recorder, and O(P) per operation for the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/flight.h"

namespace oktopk {

class NcclFlight {
 public:
  // Collective, in the sense that all ranks make as many of them: their names are then equal.
  explicit NcclFlight(Communicator& comm) : recorder_(comm.flight()) {
    FlightLine& whole = comm.flight_line();
    line_ = recorder_->open({.name = text_of(whole.name, '/', whole.parts++, ":nccl"),
                             .rank = comm.rank(),
                             .size = comm.size(),
                             .transport = "nccl",
                             .ranks = whole.ranks});
    if (!line_->ranks.empty()) return;
    for (int r = 0; r < comm.size(); ++r) line_->ranks.push_back(r);
  }

  // REQUIRES: the verb lives for ever. `memory` is not read.
  void begin(std::string_view verb, const void* memory, std::size_t bytes) {
    sends_.clear();
    recvs_.clear();
    auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(memory));
    for (int peer = 0; peer < line_->size; ++peer) {
      if (peer == line_->rank) continue;
      sends_.push_back({peer, {at, bytes}});
      recvs_.push_back({peer, {at, bytes}});
    }
    line_->outer = verb;
    open_.emplace_back(recorder_->begin(*line_, sends_, recvs_), bytes);
    if (open_.size() > FlightRecorder::kOperations) open_.erase(open_.begin());
  }

  // All operations that have begun.
  void end_all(FlightState state) {
    for (const auto& [number, bytes] : std::exchange(open_, {})) {
      for (Recv& recv : recvs_) recv.size = state == FlightState::done ? bytes : 0;
      recorder_->end(number, recvs_, state);
    }
  }
  void fail(std::string_view error) {
    end_all(FlightState::failed);
    recorder_->note_error(error);
  }

 private:
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<FlightLine> line_;
  std::vector<std::pair<std::uint64_t, std::size_t>> open_;  // number and bytes
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
};

}  // namespace oktopk
