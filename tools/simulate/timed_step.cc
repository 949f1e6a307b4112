// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/timed_step.h"

#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "tools/simulate/charging.h"

namespace oktopk {
namespace {

// Longer than ranks take to agree on an instant, over any platform.
constexpr double kPause = 60;
// Of two steps that take the same time on a clock of 1 ns.
constexpr double kInstant = 1e-8;

}  // namespace

double seconds_per_byte(const Cost& cost, const Machine& kernels) {
  const double work = cost.entries * kernels.gamma + cost.values * kernels.delta;
  return cost.bytes > 0 ? work / cost.bytes : 0;
}

TimedStep time_step(Communicator& all, Communicator& part, const SimulationSpec& spec, const SimulatedClock& clock,
                    double seconds_per_byte, const std::function<void(Communicator&)>& body, Workspace& work) {
  const double stretch = all.rank() == spec.slow_host.rank ? spec.slow_host.factor : 1;
  CountingCommunicator counting(part);
  std::uint64_t seen = 0;
  ChargingCommunicator charging(counting, seconds_per_byte, [&](double seconds) {
    const std::uint64_t messages = counting.traffic().messages_received - seen;
    seen += messages;
    const double overhead = static_cast<double>(messages) * spec.receive_overhead;
    clock.compute(stretch * (seconds + overhead));
  });
  const double begin = kPause + allreduce_small(all, clock.now(), Reduction::max, work);
  clock.sleep_until(begin);
  require(clock.now() < begin + kInstant, "simulate: rank ", all.rank(), " began a step late");
  body(charging);
  double seen_by[] = {clock.now(), static_cast<double>(counting.traffic().duplex_messages),
                      static_cast<double>(counting.traffic().duplex_bytes)};
  allreduce_small(all, std::span<double>(seen_by), Reduction::max, work);
  return {.seconds = seen_by[0] - begin, .messages = seen_by[1], .bytes = seen_by[2]};
}

}  // namespace oktopk
