// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/prices.h"

#include <gtest/gtest.h>

#include "oktopk/base/error.h"
#include "tests/support/world.h"
#include "tests/tune/priced_network.h"

namespace oktopk::network_prices_test {
namespace {

// The prices on rank 0; all ranks must have the same bits.
Machine measure(int P, const PricedNetwork::Prices& prices) {
  const auto all = gather_world("threads", P, [&](Communicator& comm) {
    PricedNetwork network(comm, prices);
    return measure_network(
        network, network, [&] { return network.seconds(); }, 0.01);
  });
  for (const Machine& m : all) {
    EXPECT_EQ(m.alpha, all[0].alpha);
    EXPECT_EQ(m.beta, all[0].beta);
    EXPECT_EQ(m.overhead, all[0].overhead);
    EXPECT_EQ(m.contention, all[0].contention);
  }
  return all[0];
}

TEST(NetworkPrices, gives_back_known_prices) {
  for (const int P : {2, 3, 5, 8}) {
    SCOPED_TRACE(P);
    expect_prices(measure(P, {.across = kEthernet}), kEthernet);
    Machine crowded = kCrowded;
    if (P == 2) crowded.contention = 1;  // two ranks are a pair
    expect_prices(measure(P, {.across = kCrowded}), crowded);
  }
}

TEST(NetworkPrices, takes_the_dearer_distance) {
  Machine real = kEthernet;
  real.beta *= 3;
  const Machine measured = measure(8, {.across = kEthernet, .far = 3});
  EXPECT_NEAR(measured.beta, real.beta, 0.01 * real.beta);
}

TEST(NetworkPrices, survives_one_odd_size) {
  for (const double size : {65536.0, 1048576.0}) {
    const auto odd = [&](double bytes) { return bytes == size ? 1e-3 : 0; };
    expect_prices(measure(3, {.across = kEthernet, .extra = odd}), kEthernet);
  }
}

TEST(NetworkPrices, are_nothing_for_one_rank) {
  const Machine measured = measure(1, {.across = kEthernet});
  EXPECT_EQ(measured.alpha, 0);
  EXPECT_EQ(measured.beta, 0);
  EXPECT_EQ(measured.overhead, 0);
  EXPECT_EQ(measured.contention, 1);
}

// A clock that stands still, or a network on which more bytes take less time.
TEST(NetworkPrices, are_never_negative_and_bytes_never_free) {
  const auto odd = [](double bytes) { return -1e-12 * bytes; };
  for (const auto& prices : {PricedNetwork::Prices{}, PricedNetwork::Prices{.across = {.alpha = 1}, .extra = odd}}) {
    const Machine measured = measure(3, prices);
    EXPECT_GE(measured.alpha, 0);
    EXPECT_GT(measured.beta, 0);
    EXPECT_GE(measured.overhead, 0);
    EXPECT_GE(measured.contention, 1);
  }
}

TEST(NetworkPrices, keep_to_the_budget) {
  run_world("threads", 3, [](Communicator& comm) {
    PricedNetwork network(comm, {.across = {.alpha = 1e-5, .beta = 1e-9}});
    const double budget = 1;
    measure_network(
        network, network, [&] { return network.seconds(); }, budget);
    EXPECT_LT(network.seconds(), 1.5 * budget);
    EXPECT_GT(network.seconds(), 0.2 * budget);
  });
}

TEST(Robust, median_is_the_middle_or_the_mean_of_two) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Robust, slope_survives_any_wrong_point_of_five) {
  const std::vector<double> x = {1, 4, 16, 32, 64};
  const std::vector<double> right = {12, 18, 42, 74, 138};  // 10 + 2x
  EXPECT_DOUBLE_EQ(median_slope(x, right), 2);
  for (std::size_t i = 0; i < x.size(); ++i)
    for (const double wrong : {-1000.0, 1000.0}) {
      std::vector<double> y = right;
      y[i] = wrong;
      EXPECT_DOUBLE_EQ(median_slope(x, y), 2) << i;
    }
}

}  // namespace
}  // namespace oktopk::network_prices_test
