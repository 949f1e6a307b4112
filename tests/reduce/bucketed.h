// SPDX-License-Identifier: Apache-2.0
// A small model of many tensors for the tests of BucketedReducer, and what ranks got from it.
#pragma once

#include <string>
#include <vector>

#include "oktopk/reduce/bucketed_reducer.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"

namespace oktopk {

// Uneven, with an empty tensor; fused by kSize: {5}, {4, 3}, {2, 1, 0}.
inline const std::vector<Index> kTensors = {40, 1, 60, 100, 0, 90};
inline constexpr Index kValues = 291;
inline const FusionOptions kSize = {.policy = FusionPolicy::size, .values = 80};
inline const FusionOptions kPerTensor = {.policy = FusionPolicy::tensor};

inline std::vector<float> gradient_of(const Communicator& comm, std::uint64_t step, Input input = Input::gaussian) {
  return make_input(input, kValues, comm.rank(), step, 1);
}

// An update that outlives its step, for comparison bit by bit.
struct Result {
  EntryList sparse;
  std::vector<float> dense;
  bool skipped = false;
  friend bool operator==(const Result&, const Result&) = default;
};

inline Result result_of(const Update& update) {
  return {list_of(update.sparse), {update.dense.begin(), update.dense.end()}, update.skipped};
}

inline std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace oktopk
