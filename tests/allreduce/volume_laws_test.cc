// SPDX-License-Identifier: Apache-2.0
// Law 4 over streams with error feedback: every preset on every stream of volume_streams(). The
// bound comes from n, k, P and the options alone, so a volume that grows with the steps is seen.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/laws.h"
#include "tests/support/world.h"

namespace oktopk::volume_laws_test {
namespace {

constexpr Index kN = 20000;

VolumeTrial make_trial(const std::string& preset, std::string_view stream) {
  VolumeTrial trial;
  trial.options.preset = preset;
  trial.options.density = 0.01;
  for (const VolumeStream& s : volume_streams())
    if (s.name == stream) {
      trial.stream = s.spec;
      trial.slack = s.slack;
    }
  trial.stream.n = kN;
  return trial;
}

Finding finding_of(int P, const VolumeTrial& trial) {
  return gather_world("threads", P, [&](Communicator& comm) { return check_volume(comm, trial); })[0];
}

struct Case {
  std::string preset;
  std::string stream;
  int P;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.preset << " " << c.stream; }

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.preset + "_" + info.param.stream + "_P" + std::to_string(info.param.P);
}

// On three ranks: all streams. On more ranks: all streams for the presets whose thresholds are steered by counts, and
// one for the others. Presets that count exactly send k entries on any stream; gaussiank promises nothing.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int P : {3, 8, 32})
    for (const Preset& preset : presets()) {
      const bool is_steered = preset.name == "oktopk" || preset.name == "circulant";
      for (const VolumeStream& stream : volume_streams())
        if (P == 3 || is_steered || stream.name == "shared")
          all.push_back({std::string(preset.name), std::string(stream.name), P});
    }
  return all;
}

class PresetVolumeLaws : public testing::TestWithParam<Case> {};

TEST_P(PresetVolumeLaws, stream_with_error_feedback_stays_within_its_bound) {
  const Case& c = GetParam();
  const Finding f = finding_of(c.P, make_trial(c.preset, c.stream));
  EXPECT_TRUE(f.holds) << f.detail;
}

INSTANTIATE_TEST_SUITE_P(Threads, PresetVolumeLaws, testing::ValuesIn(cases()), case_name);

// The paper's and the released code's thresholds, and a fitted one, promise nothing: the law says
// what was seen, and passes no verdict.
TEST(VolumeLaws, stream_of_a_preset_that_promises_nothing_is_described) {
  VolumeTrial trial = make_trial("oktopk", "gaussian");
  trial.steps = 40;
  for (const ThresholdRule rule : {ThresholdRule::paper, ThresholdRule::published}) {
    trial.options.allreduce.thresholds = rule;
    const Finding f = finding_of(3, trial);
    EXPECT_TRUE(f.holds);
    EXPECT_NE(f.detail.find("words per k on average"), std::string::npos) << f.detail;
  }
  trial.options.preset = "gaussiank";
  EXPECT_NE(finding_of(3, trial).detail.find("none promised"), std::string::npos);
}

// The law has teeth: were the paper's thresholds to promise the volume of steered ones, it would be
// broken.
TEST(VolumeLaws, stream_by_the_papers_thresholds_moves_more_than_steered_ones_may) {
  constexpr int P = 8;
  VolumeTrial trial = make_trial("oktopk", "gaussian");
  trial.options.allreduce.thresholds = ThresholdRule::paper;
  const auto bytes = gather_world("threads", P, [&](Communicator& comm) {
    CountingCommunicator counting(comm);
    Reducer reducer(counting, kN, trial.options);
    GradientStream stream(trial.stream, comm.rank());
    for (std::uint64_t step = 0; step < 128; ++step) reducer.step(stream.at(step));
    return static_cast<double>(counting.traffic().bytes_sent) / 128;
  });
  const auto steered = make_allreduce(find_preset("oktopk"), {});
  EXPECT_GT(bytes[0], 1.5 * steered->predict({.n = kN, .k = 0.01 * kN, .P = P}).bound.bytes);
}

}  // namespace
}  // namespace oktopk::volume_laws_test
