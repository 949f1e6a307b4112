// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/profile.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"

namespace oktopk::profile_test {
namespace {

Bytes saved(const Profile& profile) {
  StateWriter state;
  save(profile, state);
  return state.seal();
}

TEST(Profile, prices_a_coding_beyond_plain_coordinates) {
  const Profile profile;
  EXPECT_EQ(profile.machine_with({}).gamma, profile.machine.gamma);
  const Machine coded = profile.machine_with({IndexCoding::elias_fano, ValueCoding::bf16});
  EXPECT_DOUBLE_EQ(coded.gamma, profile.machine.gamma + 1.1e-9);
  EXPECT_EQ(coded.beta, profile.machine.beta);
}

TEST(Profile, comes_back_from_a_state_as_it_was) {
  Profile profile;
  profile.name = "a test";
  profile.machine.contention = 1.5;
  profile.value_seconds[2] = 7e-9;
  for (const bool hosts : {false, true}) {
    if (hosts) {
      profile.inside = Machine{.alpha = 1e-6, .beta = 1e-11};
      profile.ranks_per_host = 8;
    }
    const Bytes state = saved(profile);
    StateReader reader(state);
    const Profile back = take_profile(reader);
    reader.finish();
    EXPECT_EQ(back.name, "a test");
    EXPECT_EQ(back.inside.has_value(), hosts);
    EXPECT_EQ(back.value_seconds, profile.value_seconds);
    EXPECT_EQ(saved(back), state);
  }
}

TEST(Profile, cut_short_is_refused) {
  StateWriter state;
  state.put(1.0);
  const Bytes sealed = state.seal();
  StateReader reader(sealed);
  EXPECT_THROW(take_profile(reader), UsageError);
}

}  // namespace
}  // namespace oktopk::profile_test
