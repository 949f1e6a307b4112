// SPDX-License-Identifier: Apache-2.0
// Law 4 on streams with error feedback. Only counts are gathered, once, at the end, so a stream of a hundred steps
// costs little more than its steps.
#include <algorithm>
#include <array>

#include "oktopk/laws/honesty.h"
#include "oktopk/laws/witness.h"

namespace oktopk {
namespace {

constexpr std::array<VolumeStream, 5> kStreams = {{
    {"gaussian", {.data = Input::gaussian}},
    {"shared", {.data = Input::gaussian, .shared = 0.3}},
    {"jump", {.data = Input::gaussian, .event = StreamEvent::jump}, 1.15},
    {"zero_first", {.data = Input::gaussian, .event = StreamEvent::zero_first}},
    {"layered", {.data = Input::layered}},
}};

constexpr std::size_t kFields = 6;  // of a step, in Dense

void append(const Traffic& t, bool refreshed, Dense& out) {
  out.insert(out.end(), {static_cast<double>(t.duplex_messages), static_cast<double>(t.duplex_bytes),
                         static_cast<double>(t.bytes_sent), static_cast<double>(t.bytes_received),
                         static_cast<double>(t.messages_sent), refreshed ? 1.0 : 0.0});
}

Traffic traffic_at(const Dense& counts, std::size_t step) {
  const auto field = [&](std::size_t i) { return static_cast<std::uint64_t>(counts[step * kFields + i]); };
  Traffic t;
  t.duplex_messages = field(0);
  t.duplex_bytes = field(1);
  t.bytes_sent = field(2);
  t.bytes_received = field(3);
  t.messages_sent = field(4);
  return t;
}

}  // namespace

std::span<const VolumeStream> volume_streams() { return kStreams; }

Finding check_volume(Communicator& comm, const VolumeTrial& trial) {
  CountingCommunicator counting(comm);
  const auto sync = make_synchroniser(counting, trial.stream.n, trial.options, trial.group);
  const Subject subject(*sync);
  GradientStream stream(trial.stream, comm.rank());
  Dense mine;
  for (int step = 0; step < trial.steps; ++step) {
    counting.reset();
    sync->step(stream.at(static_cast<std::uint64_t>(step)));
    append(counting.traffic(), subject.outcome().refreshed, mine);
  }
  const std::vector<Dense> all = gather_dense(comm, mine);
  VolumePromise promise = promise_of(subject, trial.options);
  promise.slack = trial.slack;
  Honesty honesty(promise, spread_of(trial.stream.data), Judged::stream);
  std::vector<Traffic> ranks(all.size());
  for (std::size_t step = 0; step < static_cast<std::size_t>(trial.steps); ++step) {
    std::ranges::transform(all, ranks.begin(), [&](const Dense& counts) { return traffic_at(counts, step); });
    honesty.add(ranks, all[0][step * kFields + kFields - 1] != 0);  // rank 0 leads its node
  }
  return honesty.finding("volume");
}

}  // namespace oktopk
