// SPDX-License-Identifier: Apache-2.0
// Gradients of one rank as in training: a new one in every step, from a stationary distribution, so that error feedback
// can be measured over any number of steps. Bench, laws, studies and tests use it.
//
// A gradient is a window into a pool of n + W random values, at a random place in every step, which costs nothing. A
// shared signal and layers cost one pass over n. The inputs for exact laws (dyadic and those after it) are made anew.
// The same (spec, rank, step) gives the same numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "oktopk/laws/inputs.h"

namespace oktopk {

// One disturbance of an otherwise stationary stream.
enum class StreamEvent {
  none,
  jump,        // the scale is 1,000 times larger from step 24 to 31
  zero_first,  // the first gradient is zero, as after a learning-rate warm-up from zero
  // As training may be: two learning-rate drops (x0.1), single steps that are x10, a slow drift of the scale, and two
  // moments at which the scales of layered data move to other places. At fixed shares of StreamSpec::steps.
  rough,
};

StreamEvent find_stream_event(std::string_view name);

struct StreamSpec {
  Input data = Input::gaussian;
  Index n = 0;
  // Share of the variance that is a signal common to all ranks, which turns into another one within 16 steps. In [0,
  // 1], and 0 for exact inputs; otherwise UsageError.
  double shared = 0;
  StreamEvent event = StreamEvent::none;
  std::uint64_t steps = 200;  // of the whole run
  std::uint64_t seed = 1;
};

class GradientStream {
 public:
  GradientStream(const StreamSpec& spec, int rank);

  // Steps may come in any order. The span is valid until the next call.
  std::span<const float> at(std::uint64_t step);

  float scale_at(std::uint64_t step) const;  // of a gradient, by the event

 private:
  std::span<const float> window(const Uninitialised<float>& pool, std::uint64_t whose, std::uint64_t moment) const;
  Uninitialised<float> make_pool(std::uint64_t whose) const;
  void compose(std::uint64_t step, float scale);
  void lay_out(std::uint64_t step);

  StreamSpec spec_;
  int rank_;
  Uninitialised<float> own_;     // n + W values of this rank's noise
  Uninitialised<float> common_;  // the same for the shared signal; empty without one
  Uninitialised<float> layers_;  // scale of each index; empty unless layered
  std::uint64_t layout_ = 0;     // how often the scales have moved
  Uninitialised<float> out_;     // a gradient that is no plain window
};

}  // namespace oktopk
