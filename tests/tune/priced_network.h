// SPDX-License-Identifier: Apache-2.0
// A communicator with its own clock, which only exchanges move, at known prices.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/tune/cost.h"
#include "oktopk/tune/profile.h"

namespace oktopk {

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
inline void expect_prices(const Machine& measured, const Machine& real) {
  EXPECT_NEAR(measured.alpha, real.alpha, 0.01 * real.alpha);
  EXPECT_NEAR(measured.beta, real.beta, 0.01 * real.beta);
  EXPECT_NEAR(measured.overhead, real.overhead, 0.01 * real.overhead);
  EXPECT_NEAR(measured.contention, real.contention, 0.01 * real.contention);
}

inline constexpr Machine kEthernet = {.alpha = 16e-6, .beta = 1e-9, .overhead = 4e-6, .contention = 1};
inline constexpr Machine kCrowded = {.alpha = 3e-6, .beta = 1e-10, .overhead = 1e-6, .contention = 2.5};

}  // namespace oktopk
