// SPDX-License-Identifier: Apache-2.0
// Reducers on a device and on a CPU device, in step: updates, saved states, errors and moved values must have equal
// bits.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "tests/device/on_device.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk {

inline constexpr Index kN = 3000;

inline std::vector<float> values_of(const Update& update) {
  std::vector<float> values(kN);
  update.subtract_from(values);
  return values;
}

// A Reducer on `device` and one on a CPU device make the same steps.
inline void expect_same(Communicator& comm, const ReducerOptions& plain, const std::shared_ptr<const Device>& device) {
  ReducerOptions hidden = plain;
  hidden.device = device;
  Reducer one(comm, kN, plain), other(comm, kN, hidden);
  OnDevice<float> memory(*device, std::vector<float>(kN));
  const auto put = [&](const std::vector<float>& values) {
    memory.write(values);
    return memory.gradient();
  };
  const auto train = [&](int from, int to) {
    for (int step = from; step < to; ++step) {
      const auto gradient = make_input(Input::gaussian, kN, comm.rank(), static_cast<std::uint64_t>(step), 7);
      EXPECT_EQ(values_of(one.step(gradient)), values_of(other.step(put(gradient))));
      EXPECT_EQ(one.unsent_norm(), other.unsent_norm());
    }
  };
  train(0, 30);
  const Bytes state = one.save();
  EXPECT_EQ(state, other.save());
  EXPECT_EQ(values_of(one.flush()), values_of(other.flush()));
  one.load(state);
  other.load(state);
  std::vector<float> bad(kN, std::numeric_limits<float>::infinity());
  EXPECT_EQ(message_of([&] { one.step(bad); }), message_of([&] { other.step(put(bad)); }));
  train(30, 34);
  std::vector<float> unsent(kN), others(kN);
  one.take_unsent(unsent);
  other.take_unsent(others);
  EXPECT_EQ(unsent, others);
  one.give_unsent(unsent);
  other.give_unsent(others);
  other.subtract_unsent(memory.span());
  EXPECT_EQ(one.save(), other.save());
  one.forget();
  other.forget();
  EXPECT_EQ(other.unsent_norm(), 0);
}

// Every preset with its rules, with and without a lossy codec.
inline void expect_same_presets(int P, const std::function<std::shared_ptr<const Device>()>& make) {
  run_world("threads", P, [&](Communicator& comm) {
    for (const Preset& preset : presets())
      for (const ResidualKind rule : preset.residuals)
        for (const char* codec : {"coo32+fp32", "bit_packed+bf16"}) {
          SCOPED_TRACE(std::string(preset.name) + ", " + codec);
          ReducerOptions options{.preset = std::string(preset.name), .density = 0.01};
          options.allreduce.residual = rule;
          options.allreduce.codec = parse_codec(codec);
          options.warmup = dense_warmup(2);
          options.decay = 0.5F;
          expect_same(comm, only_used(options), make());
        }
  });
}

}  // namespace oktopk
