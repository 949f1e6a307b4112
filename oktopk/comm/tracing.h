// SPDX-License-Identifier: Apache-2.0
// Messages as events of a trace: a communicator around another one, as those of decorators.h, and
// the collective that brings the ranks' traces together. Every start and every wait is a span, with
// the peers and the bytes of its messages; those to oneself are left out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oktopk/comm/decorators.h"
#include "oktopk/trace/trace.h"

namespace oktopk {

class TracingCommunicator final : public TrackingCommunicator<std::span<const Recv>> {
 public:
  // ranks: what the peers are called, by their number here; empty: their numbers. The parts of
  // split() call them by their numbers in the part, in category "part".
  TracingCommunicator(Communicator& inner, const TraceRow& row, const std::vector<int>& ranks = {});
  TracingCommunicator(std::unique_ptr<Communicator> inner, const TraceRow& row, const std::vector<int>& ranks = {},
                      std::string_view category = "message");

  std::unique_ptr<Communicator> split(int color, int key) override;
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override;
  void finish(std::uint64_t ticket) override;

 private:
  void name_peers(const std::vector<int>& ranks);

  TraceRow row_;
  std::string_view category_ = "message";
  std::vector<std::string> to_, from_;  // by peer
};

// Collective, for ranks that have a trace each: afterwards rank 0's holds the events of all. Ranks
// of one host share a clock; the clocks of other hosts are set by a barrier, right to within about
// a message's time.
void gather_trace(Communicator& comm, Trace& trace);

}  // namespace oktopk
