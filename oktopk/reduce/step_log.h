// SPDX-License-Identifier: Apache-2.0
// The record of the last step: counts and times are noted during the step, the rest is computed when somebody asks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "oktopk/comm/flight.h"
#include "oktopk/reduce/synchroniser.h"

namespace oktopk {

struct StepLog {
  StepMetrics last;  // counts and times
  MessageCount before;
  MessageCount besides;  // that the communicator did not send
  WaitTimes waited_before;

  void begin(Communicator& comm, std::uint64_t step) {
    comm.flight()->begin_step(step);
    last = {};
    besides = {};
    before = comm.sent_so_far();
    waited_before = comm.waited_so_far();  // P numbers, into memory that is there
  }

  // act(), which measures: its messages are no part of the step.
  template <class Act>
  auto uncounted(const Communicator& comm, const Act& act) {
    const MessageCount counted = comm.sent_so_far() - before;
    auto result = act();
    const MessageCount measured = comm.sent_so_far() - before - counted;
    last.measured_bytes += measured.bytes;
    before = comm.sent_so_far() - counted;
    return result;
  }

  void end(std::uint64_t steps, CooView selection, const Update& update, Communicator& comm) {
    comm.flight()->end_step();
    const MessageCount sent = comm.sent_so_far() - before;
    last.step = steps;
    last.selected = selection.size();
    last.gathered = update.size();
    last.messages = sent.messages + besides.messages;
    last.wire_bytes = sent.bytes + besides.bytes;
    last.is_dense = update.is_dense();
    last.skipped = update.skipped;
    last.members = comm.size();
    note_waits(comm.waited_so_far());
  }

  // The difference to the beginning of the step. O(P).
  void note_waits(const WaitTimes& now) {
    const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
    last.idle = seconds(now.all - waited_before.all);
    waited_before.by_peer.resize(now.by_peer.size());
    for (std::size_t r = 0; r < now.by_peer.size(); ++r) {
      const double wait = seconds(now.by_peer[r] - waited_before.by_peer[r]);
      if (wait <= last.longest_wait) continue;
      last.longest_wait = wait;
      last.waited_for = static_cast<int>(r);
    }
  }

  // The last step, with its thresholds and the bytes of a dense step of n values. O(k).
  StepMetrics metrics(Index n, int P, CooView selection, CooView sum) const {
    const auto smallest_magnitude = [](CooView v) {
      double least = v.empty() ? 0 : std::fabs(v.val[0]);
      for (const float x : v.val) least = std::min(least, double{std::fabs(x)});
      return least;
    };
    StepMetrics metrics = last;
    metrics.n = n;
    metrics.dense_bytes = 2.0 * n * (P - 1.0) / P * sizeof(float);
    if (last.selected > 0) metrics.local_threshold = smallest_magnitude(selection);
    if (last.gathered > 0 && !last.is_dense) metrics.global_threshold = smallest_magnitude(sum);
    return metrics;
  }
};

}  // namespace oktopk
