// SPDX-License-Identifier: Apache-2.0
// Strikes a rank at one of its messages: the rank dies, stops, throws or gives up in place of sending it. Messages are
// counted over all communicators of the rank, the agreement's and those of later epochs included.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/comm/elastic_world.h"

namespace oktopk::kill {

struct Struck : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The blow that falls on one rank.
struct Strike {
  std::uint64_t at = std::numeric_limits<std::uint64_t>::max();  // message, from 0
  std::string kind;                                              // kill, stop, throw or give_up
  std::chrono::microseconds pace{0};                             // sleep before each exchange
  std::function<void()> before = {};                             // called just before the blow
  std::atomic<std::uint64_t> messages = 0;

  // True once: this message is the one.
  bool is_due() { return messages++ == at; }
};

class StrikingCommunicator final : public ForwardingCommunicator {
 public:
  template <class Inner>
  StrikingCommunicator(Inner&& inner, Strike& strike)
      : ForwardingCommunicator(std::forward<Inner>(inner)), strike_(strike) {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StrikingCommunicator>(inner().split(color, key), strike_);
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    if (strike_.pace.count() > 0) std::this_thread::sleep_for(strike_.pace);
    for (const Send& send : sends)
      if (send.peer != rank() && strike_.is_due()) fall();
    return inner().begin(sends, recvs);
  }

 private:
  void fall() {
    if (strike_.before) strike_.before();
    if (strike_.kind == "kill") std::raise(SIGKILL);
    if (strike_.kind == "stop") std::raise(SIGSTOP);
    if (strike_.kind == "give_up") inner().kill();
    if (strike_.kind == "throw" || strike_.kind == "give_up")
      throw Struck(text_of("rank ", rank(), " was struck at message ", strike_.at));
  }

  Strike& strike_;
};

// The same for a world whose members change.
class StrikingWorld final : public ElasticWorld {
 public:
  StrikingWorld(ElasticWorld& inner, Strike& strike) : inner_(inner), strike_(strike) { wrap(); }

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return inner_.membership(); }
  const Membership& regroup(std::uint64_t committed) override {
    comm_.reset();
    inner_.regroup(committed);
    wrap();
    return membership();
  }
  bool has_joiners() override { return inner_.has_joiners(); }
  void leave() override { inner_.leave(); }

 private:
  void wrap() { comm_ = std::make_unique<StrikingCommunicator>(inner_.comm(), strike_); }

  ElasticWorld& inner_;
  Strike& strike_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace oktopk::kill
