// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/settled_owners.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/presets.h"
#include "tests/support/world.h"

namespace oktopk::settled_owners_test {
namespace {

constexpr auto kKinds = {Support::iid, Support::correlated, Support::layered};

TEST(SettledOwners, make_as_many_steps_as_are_cheap) {
  EXPECT_EQ(settling_steps({.n = 100000, .k = 1000, .P = 16}), 200U);
  EXPECT_EQ(settling_steps({.n = 1000000, .k = 10000, .P = 256}), 118U);
  EXPECT_EQ(settling_steps({.n = 25000000, .k = 250000, .P = 64}), 24U);
  EXPECT_EQ(settling_steps({.n = 25000000, .k = 250000, .P = 1024}), 24U);
  EXPECT_EQ(settling_steps({.n = 10, .k = 10, .P = 1}), 24U);
}

// Thresholds of many and of few steps: the start is near what it leads to.
TEST(SettledOwners, threshold_is_that_of_random_walks_in_steps_of_one) {
  for (const int P : {4, 16, 61}) {
    const SettledOwners owners = settle_owners({.n = 40000, .k = 400, .P = P});
    EXPECT_NEAR(owners.threshold.value().value, std::sqrt(P), 0.25 * std::sqrt(P)) << P;
    EXPECT_TRUE(owners.threshold.is_known());
  }
}

// By hundreds of steps on few ranks, and by the fewest there are.
TEST(SettledOwners, gather_slightly_more_than_k) {
  for (const Support kind : kKinds) {
    for (const SupportSpec spec : {SupportSpec{.n = 100000, .k = 1000, .P = 7, .kind = kind},
                                   SupportSpec{.n = 24000, .k = 2000, .P = 64, .kind = kind}}) {
      const SettledOwners owners = settle_owners(spec);
      EXPECT_NEAR(owners.gathered, 1.05, 0.25) << static_cast<int>(kind) << " P = " << spec.P;
    }
  }
}

TEST(SettledOwners, hold_less_than_the_threshold_everywhere) {
  for (const Support kind : kKinds) {
    const SettledOwners owners = settle_owners({.n = 50000, .k = 500, .P = 5, .kind = kind});
    std::size_t above = 0;
    for (const float x : owners.memory.values()) above += std::fabs(x) > 1.2F * owners.threshold.value().value ? 1 : 0;
    EXPECT_LT(above, 50U) << static_cast<int>(kind);
  }
}

// The next steps of circulant itself, over messages, go on as if they had been there all along.
TEST(SettledOwners, circulant_goes_on_from_them) {
  constexpr int kRanks = 5;
  for (const Support kind : kKinds) {
    const SupportSpec spec{.n = 50000, .k = 500, .P = kRanks, .kind = kind};
    const SettledOwners owners = settle_owners(spec);
    run_world("threads", kRanks, [&](Communicator& comm) {
      const auto allreduce = make_allreduce(find_preset("circulant"), {});
      const auto device = make_cpu_device();
      owners.load_into(*allreduce, spec, comm.rank());
      EXPECT_EQ(allreduce->memory().values.size(), region(owners.cuts, comm.rank()).width());
      int refreshes = 0;
      for (std::uint64_t step = owners.steps; step < owners.steps + 8; ++step) {
        SparseVector selection;
        make_selection(spec, comm.rank(), step, selection);
        Outcome out;
        allreduce->run(comm, *device, {.selection = selection}, spec.n, spec.k, out);
        refreshes += out.refreshed ? 1 : 0;
        EXPECT_NEAR(static_cast<double>(out.update.size()), 500, 100) << static_cast<int>(kind);
      }
      EXPECT_LE(refreshes, 2) << static_cast<int>(kind);
    });
  }
}

}  // namespace
}  // namespace oktopk::settled_owners_test
