// SPDX-License-Identifier: Apache-2.0
// How the options of a Reducer are checked, put into words and become objects; Reducer, BucketedReducer and NodeReducer
// share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "oktopk/reduce/reducer.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {

// n as an index. UsageError, which names `whose` n it is, above 2^32 - 1.
Index checked_size(std::string_view whose, std::uint64_t n);

inline constexpr double kDefaultDensity = 0.01;  // where neither density nor k is given
// k of the steps after the warm-up. UsageError unless it is in 1..n.
std::size_t entries_per_step(Index n, const ReducerOptions& options);

// UsageError for the first option that the preset would ignore; it names option, value and rule.
void check_used(const ReducerOptions& options);
// The same options without those, for sweeps over presets.
ReducerOptions only_used(ReducerOptions options);

// All options that must be equal on all ranks and in a state that is loaded, in words. UsageError that names the option
// and the rule when one is unfit. divisor: as in Reducer's second constructor.
std::string describe(const ReducerOptions& options, Index n, int divisor = 0);

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
