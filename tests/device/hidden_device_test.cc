// SPDX-License-Identifier: Apache-2.0
// Reducers on a device whose memory the host cannot touch: every preset gives the bits of the CPU device. So no code
// outside the device reads or writes gradient, residual or owner memory.
#include "tests/device/hidden_device.h"

#include <gtest/gtest.h>

#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/unsent.h"
#include "tests/laws/inputs.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::hidden_device_test {
namespace {

constexpr Index kN = 3000;

class Hidden {
 public:
  explicit Hidden(const Device& device) : device_(device), memory_(device.allocate(kN)) {}
  Gradient put(const std::vector<float>& values) {
    device_.write(span(), values);
    return span();
  }
  std::span<float> span() { return {memory_.get(), kN}; }

 private:
  const Device& device_;
  DeviceFloats memory_;
};

std::vector<float> values_of(const Update& update) {
  std::vector<float> values(kN);
  update.subtract_from(values);
  return values;
}

void expect_same(Communicator& comm, const ReducerOptions& plain) {
  const auto device = std::make_shared<HiddenDevice>();
  ReducerOptions hidden = plain;
  hidden.device = device;
  Reducer one(comm, kN, plain), other(comm, kN, hidden);
  Hidden memory(*device);
  const auto train = [&](int from, int to) {
    for (int step = from; step < to; ++step) {
      const auto gradient = make_input(Input::gaussian, kN, comm.rank(), static_cast<std::uint64_t>(step), 7);
      EXPECT_EQ(values_of(one.step(gradient)), values_of(other.step(memory.put(gradient))));
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
  EXPECT_EQ(message_of([&] { one.step(bad); }), message_of([&] { other.step(memory.put(bad)); }));
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

TEST(HiddenDevice, presets_and_rules_give_the_bits_of_the_cpu_device) {
  run_world("threads", 3, [](Communicator& comm) {
    for (const Preset& preset : presets())
      for (const ResidualKind rule : preset.residuals)
        for (const char* codec : {"coo32+fp32", "bit_packed+bf16"}) {
          SCOPED_TRACE(std::string(preset.name) + ", " + codec);
          ReducerOptions options{.preset = std::string(preset.name), .density = 0.01};
          options.allreduce.residual = rule;
          options.allreduce.codec = parse_codec(codec);
          options.warmup = dense_warmup(2);
          options.decay = 0.5F;
          expect_same(comm, only_used(options));
        }
  });
}

TEST(HiddenDevice, an_adaptive_density_looks_at_the_residual_by_a_verb) {
  run_world("threads", 2, [](Communicator& comm) {
    expect_same(comm, {.preset = "circulant", .density = 0.01, .adaptive = {.target_share = 0.3, .interval = 4}});
  });
}

TEST(HiddenDevice, states_of_other_ranks_are_merged_by_verbs) {
  run_world("threads", 2, [](Communicator& comm) {
    const auto device = std::make_shared<HiddenDevice>();
    const ReducerOptions plain{.preset = "circulant"};
    ReducerOptions hidden = plain;
    hidden.device = device;
    Reducer first(comm, kN, plain), one(comm, kN, plain), other(comm, kN, hidden);
    first.step(make_input(Input::gaussian, kN, comm.rank(), 0, 7));
    const std::vector<Bytes> states(1, [&] {
      const auto alone = comm.split(comm.rank(), 0);
      Reducer old(*alone, kN, plain);
      old.step(make_input(Input::gaussian, kN, 0, 1, 7));
      return old.save();
    }());
    one.load_all(states);
    other.load_all(states);
    EXPECT_EQ(one.save(), other.save());
  });
}

TEST(HiddenDeviceDeathTest, the_host_cannot_read_its_memory) {
  const HiddenDevice device;
  const DeviceFloats memory = device.allocate(10);
  EXPECT_DEATH(std::printf("%f", static_cast<double>(memory[3])), "");
  std::vector<float> host(10, 1.0F);
  EXPECT_THROW(device.multiply(host, 2), std::logic_error);
}

}  // namespace
}  // namespace oktopk::hidden_device_test
