// SPDX-License-Identifier: Apache-2.0
// A kernel and its limit, timed in turns, so that both see the same machine: other programs, clock and temperature
// change over a run, but hardly from one repetition to the next.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "oktopk/comm/decorators.h"

namespace oktopk {

// A stopwatch: lap() gives the seconds since the last lap.
class Timer {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

using Body = std::function<void()>;

// Seconds of one body, over all repetitions.
struct Times {
  double median = 0;
  double least = 0;
  double deviation = 0;  // median of |time - median|: the noise of a repetition
};
Times summarise(const std::vector<double>& seconds);

struct TimedPair {
  Times kernel, limit;
  double ratio() const { return limit.median > 0 ? kernel.median / limit.median : 0; }
  double least_ratio() const { return limit.least > 0 ? kernel.least / limit.least : 0; }
};

// One repetition: prepare (not timed), kernel, prepare, limit. The first is not counted: it warms the buffers. Limit
// and prepare may be empty. A body that takes less than 20 us and needs no preparation runs several times per
// repetition.
TimedPair time_in_turns(int repetitions, const Body& kernel, const Body& limit = {}, const Body& prepare = {});

// A communicator around another one that adds up the time its rank spends inside: starting exchanges and waiting for
// them, which includes waiting for late ranks.
class TimingCommunicator final : public ForwardingCommunicator {
 public:
  explicit TimingCommunicator(Communicator& inner)
      : ForwardingCommunicator(inner), seconds_(std::make_shared<double>(0)) {}

  // Since the last reset(), including communicators split from this one.
  double seconds() const { return *seconds_; }
  void reset() { *seconds_ = 0; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::unique_ptr<Communicator>(new TimingCommunicator(inner().split(color, key), seconds_));
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    Timer timer;
    const std::uint64_t ticket = inner().begin(sends, recvs);
    *seconds_ += timer.lap();
    return ticket;
  }
  void finish(std::uint64_t ticket) override {
    Timer timer;
    inner().finish(ticket);
    *seconds_ += timer.lap();
  }

 private:
  TimingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<double> seconds)
      : ForwardingCommunicator(std::move(inner)), seconds_(std::move(seconds)) {}

  std::shared_ptr<double> seconds_;
};

}  // namespace oktopk
