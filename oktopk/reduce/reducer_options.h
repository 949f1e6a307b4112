// SPDX-License-Identifier: Apache-2.0
// How the options of a Reducer become objects; Reducer, BucketedReducer and NodeReducer share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/candidates.h"

namespace oktopk {

// n as an index. UsageError, which names `whose` n it is, above 2^32 - 1.
Index checked_size(std::string_view whose, std::uint64_t n);

// The device of the options, or a CPU device.
std::shared_ptr<const Device> device_of(const ReducerOptions& options);

// A communicator around comm where the options ask for its messages in a trace; null elsewhere.
std::unique_ptr<Communicator> trace_messages(Communicator& comm, const ReducerOptions& options);

// Preset auto: the choice for P ranks by the profile.
Tuner make_tuner(const ReducerOptions& options, Index n, int P, const Profile& profile);
// The preset, codec and skips of a method, with the caller's other options where they fit.
AllreduceOptions options_of(const Method& method, const ReducerOptions& options);

// Adds the cost of agreement to that of an allreduce: comparing notes on P ranks, and shares of an adaptive density on
// `sharers`.
Prediction with_agreement(Prediction prediction, const ReducerOptions& options, int P, int sharers);

// The selector that the options name, or the preset's own for these options of the allreduce.
inline std::string_view selector_of(const ReducerOptions& options, const Preset& preset, const AllreduceOptions& o) {
  return options.selector.empty() ? default_selector(preset, o) : std::string_view(options.selector);
}

}  // namespace oktopk
