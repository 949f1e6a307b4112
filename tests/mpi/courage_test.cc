// SPDX-License-Identifier: Apache-2.0
// Law 6 on real processes: every preset with a peer that dies, is silent, slow or lies. Buffers are
// unmapped as soon as an exchange has failed, and the messages are so large that MPI does not send
// them unasked: what a failed exchange leaves with MPI must not touch them. Runs on 2 and 3 ranks.
#include <gtest/gtest.h>

#include "oktopk/comm/transports.h"
#include "oktopk/laws/laws.h"
#include "tests/support/fleeting.h"
#include "tests/support/patience.h"
#include "tests/support/training.h"

namespace oktopk::courage_test {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Communicator> make_doomed(Communicator::Duration timeout) {
  return std::make_unique<FleetingCommunicator>(make_mpi_world({.timeout = timeout}));
}

void expect_courage(const Trial& trial) {
  const auto sound = make_mpi_world();
  if (sound->size() != 2 && sound->size() != 3) GTEST_SKIP() << "for 2 and 3 ranks";
  const Finding finding = find_patiently(400ms, [&](Communicator::Duration timeout) {
    return check_courage(
        *sound, [timeout] { return make_doomed(timeout); }, trial);
  });
  EXPECT_TRUE(finding.holds) << finding.detail;
}

Trial make_trial(const std::string& preset) {
  Trial trial;
  trial.n = 100'000;
  trial.options = preset_options(preset, trial.n / 10);
  trial.options.allreduce.tau = 4;
  trial.options.allreduce.tau_prime = 3;
  return trial;
}

std::vector<std::string> all_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

class MpiCourage : public testing::TestWithParam<std::string> {};

TEST_P(MpiCourage, holds) { expect_courage(make_trial(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Presets, MpiCourage, testing::ValuesIn(all_presets()),
                         [](const auto& test) { return test.param; });

TEST(MpiCourageInNodes, holds) {
  Trial trial = make_trial("circulant");
  trial.group = 2;
  expect_courage(trial);
}

}  // namespace
}  // namespace oktopk::courage_test
