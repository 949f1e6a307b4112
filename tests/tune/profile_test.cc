// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/profile.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/tune/tuner.h"

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

// States without hosts or an external dense are as they were before there were any.
TEST(Profile, comes_back_from_a_state_as_it_was) {
  Profile profile;
  const std::size_t size = saved(profile).size();
  profile.name = "a test";
  profile.machine.contention = 1.5;
  profile.value_seconds[2] = 7e-9;
  Profile hosts = profile;
  hosts.inside = Machine{.alpha = 1e-6, .beta = 1e-11};
  hosts.ranks_per_host = 8;
  Profile external = hosts;
  external.external_dense = {.latency = 1e-4, .per_byte = 3e-10};
  for (const Profile& before : {profile, hosts, external}) {
    const Bytes state = saved(before);
    const std::size_t more = before.external_dense ? 2 * sizeof(double) : 0;
    EXPECT_EQ(state.size() - before.name.size(), size - Profile{}.name.size() + more);
    StateReader reader(state);
    const Profile back = take_profile(reader);
    reader.finish();
    EXPECT_EQ(back.name, "a test");
    EXPECT_EQ(back.ranks_per_host, before.ranks_per_host);
    EXPECT_EQ(back.inside.has_value(), before.inside.has_value());
    EXPECT_EQ(back.external_dense.has_value(), before.external_dense.has_value());
    EXPECT_EQ(back.external_dense.value_or(ExternalPrice{}).per_byte, before.external_dense ? 3e-10 : 0);
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
