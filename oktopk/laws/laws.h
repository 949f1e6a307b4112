// SPDX-License-Identifier: Apache-2.0
// The laws that every preset, codec, residual rule and transport must keep. One trial runs a Reducer or NodeReducer for
// a few steps on any communicator, gathers the inputs and results of all ranks, and says which laws hold. The tests and
// `oktopk verify` run the same trials.
//   1 agreement  the update is bitwise equal on all ranks
//   2 truth      it equals the oracle's (exactly: inputs are dyadic)
//   3 mass       sum of accumulators + m == update + sum of residuals + m', each step and over all
//     restore    the same over a restart: a saved run continues bitwise; on other ranks it owes the same values
//   4 honesty    counted messages and bytes stay within predict() of n, k, P and the options
//     volume     the same over a stream with error feedback, and so does their mean
//   5 calm       unchanged under random delays
//   6 courage    a dead, silent, slow or lying peer gives an error everywhere, in time
//   7 bad input  a clear error on all ranks, nothing lost, the next step works
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oktopk/comm/communicator.h"
#include "oktopk/laws/gradient_stream.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"

namespace oktopk {

struct Trial {
  ReducerOptions options;
  int group = 1;  // 1: a Reducer; else a NodeReducer (group as in NodeOptions)
  Index n = 1000;
  Input input = Input::dyadic;
  int steps = 4;
  std::uint64_t seed = 1;
};

// The verdict on one law, equal on all ranks. A law that does not apply to this trial is not listed.
struct Finding {
  std::string law;
  bool holds = true;
  std::string detail;  // the first violation, or an observation
};

// Laws 1 to 4. Collective; `comm` survives.
std::vector<Finding> check_steps(Communicator& comm, const Trial& trial);

// Law 3 over a restart in the middle, on the same ranks and on one rank less. Collective; `comm` survives.
Finding check_restore(Communicator& comm, const Trial& trial);

// A stream for the law of volume.
struct VolumeStream {
  std::string_view name;
  StreamSpec spec;   // n and seed are the caller's
  double slack = 1;  // factor of the bound of the mean step; above 1 where refreshes are not rare (docs/laws.md)
};
std::span<const VolumeStream> volume_streams();

struct VolumeTrial {
  ReducerOptions options;
  int group = 1;
  StreamSpec stream;
  double slack = 1;  // as in VolumeStream
  int steps = 128;
};

// Law 4 over a stream of steps with error feedback. Where nothing is promised (Allreduce::promises_volume), it holds
// and the detail has the observed volume. Collective; `comm` survives.
Finding check_volume(Communicator& comm, const VolumeTrial& trial);

// Law 5. Collective; `comm` survives.
Finding check_calm(Communicator& comm, const Trial& trial);

// Law 6. `make_comm` is called collectively, once per fault, and gives this rank's communicator of a fresh world with a
// short timeout, which is dead afterwards. `report` is a sound communicator of the same ranks, for their findings.
Finding check_courage(Communicator& report, const std::function<std::unique_ptr<Communicator>()>& make_comm,
                      const Trial& trial);

// Law 7. Collective; `comm` survives.
Finding check_bad_input(Communicator& comm, const Trial& trial);

}  // namespace oktopk
