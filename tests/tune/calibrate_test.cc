// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/laws/faults.h"
#include "oktopk/tune/candidates.h"
#include "oktopk/tune/prices.h"
#include "oktopk/tune/profile.h"
#include "tests/support/world.h"

namespace oktopk::calibrate_test {
namespace {

// A communicator with its own clock, which only exchanges move, at known prices.
class PricedNetwork final : public ForwardingCommunicator {
 public:
  struct Prices {
    Machine across;
    Machine inside = {};
    int ranks_per_host = 1;                          // ranks that share a host pay the prices of `inside`
    double far = 1;                                  // how many times dearer a byte is to the rank P/2 further
    std::function<double(double bytes)> extra = {};  // seconds more for a message
  };

  PricedNetwork(Communicator& inner, const Prices& prices)
      : ForwardingCommunicator(inner),
        prices_(std::make_shared<Prices>(prices)),
        seconds_(std::make_shared<double>(0)),
        machine_(prices.across) {}

  double seconds() const { return *seconds_; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const int world_rank = rank();
    auto part = inner().split(color, key);
    std::vector<std::int64_t> first(1, world_rank / prices_->ranks_per_host), last = first;
    Workspace work;
    allreduce_small(*part, std::span<std::int64_t>(first), Reduction::min, work);
    allreduce_small(*part, std::span<std::int64_t>(last), Reduction::max, work);
    const Machine& machine = first == last ? prices_->inside : prices_->across;
    return std::unique_ptr<Communicator>(new PricedNetwork(std::move(part), prices_, seconds_, machine));
  }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const std::uint64_t ticket = inner().begin(sends, recvs);
    const double contention = sends.size() > 1 ? machine_.contention : 1;
    if (!sends.empty()) *seconds_ += machine_.alpha;
    for (const Send& send : sends) {
      const auto bytes = static_cast<double>(send.bytes.size());
      const int distance = (send.peer - rank() + size()) % size();
      const double far = size() > 3 && distance == size() / 2 ? prices_->far : 1;
      *seconds_ += machine_.overhead + bytes * machine_.beta * contention * far;
      if (prices_->extra) *seconds_ += prices_->extra(bytes);
    }
    return ticket;
  }

 private:
  PricedNetwork(std::unique_ptr<Communicator> inner, std::shared_ptr<Prices> prices, std::shared_ptr<double> seconds,
                const Machine& machine)
      : ForwardingCommunicator(std::move(inner)),
        prices_(std::move(prices)),
        seconds_(std::move(seconds)),
        machine_(machine) {}

  std::shared_ptr<Prices> prices_;
  std::shared_ptr<double> seconds_;
  Machine machine_;
};

// Measured to within a hundredth.
void expect_prices(const Machine& measured, const Machine& real) {
  EXPECT_NEAR(measured.alpha, real.alpha, 0.01 * real.alpha);
  EXPECT_NEAR(measured.beta, real.beta, 0.01 * real.beta);
  EXPECT_NEAR(measured.overhead, real.overhead, 0.01 * real.overhead);
  EXPECT_NEAR(measured.contention, real.contention, 0.01 * real.contention);
}

constexpr Machine kEthernet = {.alpha = 16e-6, .beta = 1e-9, .overhead = 4e-6, .contention = 1};
constexpr Machine kCrowded = {.alpha = 3e-6, .beta = 1e-10, .overhead = 1e-6, .contention = 2.5};

constexpr double kSmallMessages = 1 << 16;  // bytes of barriers and agreements between the timed rounds

std::vector<double> numbers(const Machine& m) {
  return {m.alpha, m.beta, m.gamma, m.overhead, m.contention, m.delta, m.sigma};
}

std::vector<double> numbers(const Profile& profile) {
  std::vector<double> all = numbers(profile.machine);
  for (const auto& part : {profile.inside, profile.leaders})
    if (part)
      for (const double x : numbers(*part)) all.push_back(x);
  all.insert(all.end(), profile.index_seconds.begin(), profile.index_seconds.end());
  all.insert(all.end(), profile.value_seconds.begin(), profile.value_seconds.end());
  all.push_back(profile.ranks_per_host);
  return all;
}

TEST(Calibrate, is_sane_and_bitwise_equal_on_all_ranks) {
  for (const int P : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(P);
    const auto all = gather_world(
        "threads", P, [](Communicator& comm) { return calibrate(comm, {.budget = 0.02, .values = 1 << 16}); });
    for (const Profile& profile : all) EXPECT_EQ(numbers(profile), numbers(all[0]));
    EXPECT_EQ(all[0].name, "measured: threads, " + std::to_string(P) + (P == 1 ? " rank" : " ranks"));
    for (const double x : numbers(all[0])) EXPECT_GE(x, 0);
    for (const double x : {all[0].machine.gamma, all[0].machine.delta, all[0].machine.sigma}) EXPECT_GT(x, 0);
    EXPECT_LT(all[0].machine.sigma, 1e-6);
    EXPECT_GE(all[0].machine.contention, 1);
    EXPECT_EQ(all[0].machine.beta > 0, P > 1);
  }
}

TEST(Calibrate, takes_the_dearest_rank_s_price_of_an_external_dense) {
  const auto all = gather_world("threads", 3, [](Communicator& comm) {
    const double mine = comm.rank() == 1 ? 5 : 1;
    return calibrate(
        comm,
        {.budget = 0.01, .values = 1 << 12, .external_dense = ExternalPrice{.latency = mine, .per_byte = 1 / mine}});
  });
  for (const Profile& profile : all) {
    EXPECT_EQ(profile.external_dense->latency, 5);
    EXPECT_EQ(profile.external_dense->per_byte, 1);
  }
  run_world("threads", 2, [](Communicator& comm) {
    CalibrateOptions options{.budget = 0.01, .values = 1 << 12};
    if (comm.rank() == 1) options.external_dense = ExternalPrice{};
    EXPECT_THROW(calibrate(comm, options), UsageError);
    options.external_dense = ExternalPrice{.latency = -1};
    EXPECT_THROW(calibrate(comm, options), UsageError);
  });
}

TEST(Calibrate, measures_hosts_and_their_inside_apart) {
  for (const int P : {6, 7, 8}) {  // the last host may have fewer ranks, even one
    SCOPED_TRACE(P);
    const auto all = gather_world("threads", P, [&](Communicator& comm) {
      PricedNetwork network(comm, {.across = kEthernet, .inside = kCrowded, .ranks_per_host = 3});
      return calibrate(network, {.budget = 0.01,
                                 .most_bytes = 1 << 22,
                                 .now = [&] { return network.seconds(); },
                                 .kernels = false,
                                 .ranks_per_host = 3});
    });
    for (const Profile& profile : all) EXPECT_EQ(numbers(profile), numbers(all[0]));
    EXPECT_EQ(all[0].ranks_per_host, 3);
    expect_prices(all[0].machine, kEthernet);
    ASSERT_TRUE(all[0].inside);
    expect_prices(*all[0].inside, kCrowded);
    EXPECT_EQ(all[0].inside->gamma, all[0].machine.gamma);
    ASSERT_TRUE(all[0].leaders);
    expect_prices(*all[0].leaders, kEthernet);
  }
}

TEST(Calibrate, has_no_inside_when_all_ranks_share_a_host) {
  run_world("threads", 3, [](Communicator& comm) {
    const Profile profile = calibrate(comm, {.budget = 0.01, .kernels = false, .ranks_per_host = 8});
    EXPECT_FALSE(profile.inside);
    EXPECT_EQ(profile.ranks_per_host, 3);
  });
}

TEST(Calibrate, sends_nothing_alone) {
  run_world("threads", 1, [](Communicator& comm) {
    CountingCommunicator counting(comm);
    const Profile profile = calibrate(counting, {.budget = 0.01, .values = 1000});
    EXPECT_EQ(counting.traffic().messages_sent, 0U);
    const Machine& m = profile.machine;
    for (const double price : {m.alpha, m.beta, m.overhead}) EXPECT_EQ(price, 0);
    EXPECT_EQ(m.contention, 1);
  });
}

TEST(Calibrate, refuses_options_on_all_ranks) {
  run_world("threads", 3, [](Communicator& comm) {
    EXPECT_THROW(calibrate(comm, {.budget = 0}), UsageError);
    EXPECT_THROW(calibrate(comm, {.ranks_per_host = 0}), UsageError);
    EXPECT_THROW(calibrate(comm, {.budget = 0.01 * (1 + comm.rank()), .kernels = false}), UsageError);
    Profile assumed;
    assumed.machine.gamma = comm.rank();
    EXPECT_THROW(calibrate(comm, {.kernels = false, .assumed = assumed}), UsageError);
    calibrate(comm, {.budget = 0.01, .kernels = false});  // and the communicator is as good as new
  });
}

TEST(Calibrate, ends_with_an_error_when_a_peer_dies) {
  for (const std::uint64_t message : {0U, 5U, 20U, 40U}) {  // a slow machine makes few in the time
    SCOPED_TRACE(message);
    EXPECT_THROW(run_world(
                     "threads", 3,
                     [&](Communicator& comm) {
                       FaultyCommunicator faulty(comm, {comm.rank() == 1 ? FaultKind::die : FaultKind::none, message});
                       calibrate(faulty, {.budget = 0.01, .kernels = false});
                     },
                     std::chrono::seconds(5)),
                 CommError);
  }
}

// The prices on rank 0; all ranks must have the same bits, and the prices of the processor that are assumed.
Machine measure_network(int P, const PricedNetwork::Prices& prices) {
  Profile assumed;
  assumed.machine.gamma = 7e-9;
  assumed.machine.sigma = 6e-10;
  assumed.index_seconds[3] = 5e-9;
  const auto all = gather_world("threads", P, [&](Communicator& comm) {
    PricedNetwork network(comm, prices);
    return calibrate(network,
                     {.budget = 0.01, .now = [&] { return network.seconds(); }, .kernels = false, .assumed = assumed});
  });
  for (const Profile& profile : all) EXPECT_EQ(numbers(profile), numbers(all[0]));
  EXPECT_EQ(all[0].machine.gamma, 7e-9);
  EXPECT_EQ(all[0].machine.sigma, 6e-10);
  EXPECT_EQ(all[0].index_seconds, assumed.index_seconds);
  EXPECT_FALSE(all[0].inside);
  return all[0].machine;
}

TEST(NetworkPrices, gives_back_known_prices) {
  for (const int P : {2, 3, 5, 8}) {
    SCOPED_TRACE(P);
    expect_prices(measure_network(P, {.across = kEthernet}), kEthernet);
    Machine crowded = kCrowded;
    if (P == 2) crowded.contention = 1;  // two ranks are a pair
    expect_prices(measure_network(P, {.across = kCrowded}), crowded);
  }
}

TEST(NetworkPrices, takes_the_dearer_distance) {
  Machine real = kEthernet;
  real.beta *= 3;
  const Machine measured = measure_network(8, {.across = kEthernet, .far = 3});
  EXPECT_NEAR(measured.beta, real.beta, 0.01 * real.beta);
}

TEST(NetworkPrices, survives_one_odd_size) {
  for (const double size : {65536.0, 1048576.0}) {
    const auto odd = [&](double bytes) { return bytes == size ? 1e-3 : 0; };
    expect_prices(measure_network(3, {.across = kEthernet, .extra = odd}), kEthernet);
  }
}

// A clock that stands still, or a network on which more bytes take less time.
TEST(NetworkPrices, are_never_negative_and_bytes_never_free) {
  const auto odd = [](double bytes) { return -1e-12 * bytes; };
  for (const auto& prices : {PricedNetwork::Prices{}, PricedNetwork::Prices{.across = {.alpha = 1}, .extra = odd}}) {
    const Machine measured = measure_network(3, prices);
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
    calibrate(network, {.budget = budget, .now = [&] { return network.seconds(); }, .kernels = false});
    EXPECT_LT(network.seconds(), 1.5 * budget);
    EXPECT_GT(network.seconds(), 0.2 * budget);
  });
}

// As many bytes as a few dense steps: for a small gradient the choice is still that of the true prices.
TEST(NetworkPrices, are_measured_with_as_many_bytes_as_the_problem_is_worth) {
  Machine slow = kEthernet;
  slow.beta *= 100;
  for (const Machine& real : {kEthernet, kCrowded, slow})
    for (const int P : {2, 3, 8})
      for (const double n : {1e3, 132'097.0, 4e6}) {
        SCOPED_TRACE(testing::Message() << "P = " << P << ", n = " << n << ", beta = " << real.beta);
        const double most = most_measured(n, P);
        const Profile truth{.machine = real};
        const Problem problem{.n = n, .k = std::round(0.025 * n), .P = P};
        const auto choices = gather_world("threads", P, [&](Communicator& comm) {
          PricedNetwork network(comm, {.across = real});
          const MessageCount before = network.sent_so_far();
          const Profile measured = calibrate(
              network,
              {.most_bytes = most, .now = [&] { return network.seconds(); }, .kernels = false, .assumed = truth});
          EXPECT_LE(static_cast<double>((network.sent_so_far() - before).bytes), most + kSmallMessages);
          const Candidate choice = rank_candidates(problem, measured, {}).front();
          const Candidate best = rank_candidates(problem, truth, {}).front();
          EXPECT_LE(price(choice.method, problem, truth, {}).seconds, 1.05 * best.seconds);
          return to_string(choice.method);
        });
        for (const std::string& choice : choices) EXPECT_EQ(choice, choices[0]);
      }
  run_world("threads", 2, [](Communicator& comm) { EXPECT_THROW(calibrate(comm, {.most_bytes = 1000}), UsageError); });
}

TEST(NetworkPrices, are_measured_by_few_rounds_where_a_round_takes_long) {
  run_world("threads", 3, [](Communicator& comm) {
    PricedNetwork network(comm, {.across = {.alpha = 0.1, .beta = 1e-9}});
    const Machine m = calibrate(network, {.now = [&] { return network.seconds(); }, .kernels = false}).machine;
    EXPECT_NEAR(m.alpha, 0.1, 1e-3);
    EXPECT_LT(network.seconds(), 0.1 * 14 * 7);  // 14 probes: a round, a barrier, and the agreement on its time
  });
}

// The clock moves by one tick whenever it is read, so every run takes equally long: no coding costs more than the plain
// one, and the prices follow from the numbers of entries and values alone.
TEST(KernelPrices, are_per_entry_and_per_value) {
  const auto all = gather_world("threads", 2, [](Communicator& comm) {
    double seconds = 0;
    const double tick = comm.rank() == 1 ? 2 : 1;  // the slower rank counts
    return calibrate(comm, {.budget = 1, .now = [&] { return seconds += tick; }, .values = 1000});
  });
  EXPECT_DOUBLE_EQ(all[0].machine.delta, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(all[0].machine.sigma, 2.0 / 1000);
  EXPECT_DOUBLE_EQ(all[0].machine.gamma, 2.0 / (5 * 5242));
  EXPECT_EQ(all[0].index_seconds, (std::array<double, kIndexCodingCount>{}));
  EXPECT_EQ(all[0].value_seconds, (std::array<double, kValueCodingCount>{}));
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
}  // namespace oktopk::calibrate_test
