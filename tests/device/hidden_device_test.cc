// SPDX-License-Identifier: Apache-2.0
// Reducers on a device whose memory the host cannot touch: every preset gives the bits of the CPU device. So no code
// outside the device reads or writes gradient, residual or owner memory.
#include "tests/device/hidden_device.h"

#include <gtest/gtest.h>

#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/unsent.h"
#include "tests/device/same_steps.h"
#include "tests/support/message.h"
#include "tests/support/training.h"

namespace oktopk::hidden_device_test {
namespace {

TEST(HiddenDevice, presets_and_rules_give_the_bits_of_the_cpu_device) {
  expect_same_presets(3, [] { return std::make_shared<HiddenDevice>(); });
}

TEST(HiddenDevice, an_adaptive_density_looks_at_the_residual_by_a_verb) {
  run_world("threads", 2, [](Communicator& comm) {
    expect_same(comm, {.preset = "circulant", .density = 0.01, .adaptive = {.target_share = 0.3, .interval = 4}},
                std::make_shared<HiddenDevice>());
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
