// SPDX-License-Identifier: Apache-2.0
// An elastic job whose members are killed and stopped, with an arbiter in a process of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/elastic_world.h"
#include "tests/tcp/processes.h"

namespace oktopk::elastic_test {
namespace {

using namespace std::chrono_literals;

class TcpElasticProcesses : public testing::Test {
 protected:
  // Process 0 is the arbiter, and the one after the members may be the next one. Members say "SIZE" once per epoch.
  auto job(int members) {
    return [this, members](int number, const Processes::Say& say) {
      if (number == 0 || number == members + 1) return serve(number, say);
      TcpElasticOptions options{.least = members};
      options.tcp.rendezvous = files().get("address", 60s).value();
      options.tcp.secret = kSecret;
      options.tcp.silence = 2s;
      const auto world = make_tcp_elastic_world(options);
      while (true) {
        say(std::to_string(world->comm().size()));
        try {
          while (true) step(*world);
        } catch (const CommError&) {
          world->regroup(0);
        }
      }
    };
  }
  KeyValueStore files() const { return make_file_store(directory); }

  void serve(int number, const Processes::Say& say) const {
    const std::string address = number == 0 ? "127.0.0.1:0" : files().get("next arbiter", 300s).value();
    const RendezvousServer server({.listen = address, .secret = kSecret, .grace = 3s, .log = say});
    if (number == 0) files().set("address", server.address());
    std::this_thread::sleep_for(300s);
  }
  static void step(ElasticWorld& world) {
    barrier(world.comm());
    const auto begin = std::chrono::steady_clock::now();
    world.has_joiners();
    if (std::chrono::steady_clock::now() - begin > 1s) fail<UsageError>("a step waited for the arbiter");
    std::this_thread::sleep_for(1ms);
  }
  ~TcpElasticProcesses() override { std::filesystem::remove_all(directory); }

  static constexpr const char* kSecret = "a secret for tests";
  const std::string directory = testing::TempDir() + "oktopk-" + make_random_secret();
};

TEST_F(TcpElasticProcesses, survivors_go_on_after_two_were_killed_at_once) {
  Processes ranks(6, job(5));
  for (const int number : {1, 2, 3, 4, 5}) ASSERT_EQ(ranks.line(number), "5");
  ranks.signal(2, SIGKILL);
  ranks.signal(5, SIGKILL);
  for (const int number : {1, 3, 4}) {
    std::string line = ranks.line(number);
    if (line == "4") line = ranks.line(number);  // the two were seen one after the other
    EXPECT_EQ(line, "3");
  }
}

TEST_F(TcpElasticProcesses, stopped_member_is_lost_and_refused_when_it_continues) {
  Processes ranks(4, job(3));
  for (const int number : {1, 2, 3}) ASSERT_EQ(ranks.line(number), "3");
  ranks.signal(2, SIGSTOP);
  for (const int number : {1, 3}) EXPECT_EQ(ranks.line(number), "2");
  ranks.signal(2, SIGCONT);
  const std::string line = ranks.line(2);
  EXPECT_NE(line.find("not in the next epoch"), std::string::npos) << line;
}

TEST_F(TcpElasticProcesses, stopped_arbiter_stops_no_step_and_loses_nobody) {
  Processes ranks(4, job(3));
  for (const int number : {1, 2, 3}) ASSERT_EQ(ranks.line(number), "3");
  ranks.signal(0, SIGSTOP);
  std::this_thread::sleep_for(6s);  // longer than the members wait for an answer
  ranks.signal(0, SIGCONT);
  ranks.signal(2, SIGKILL);
  for (const int number : {1, 3}) EXPECT_EQ(ranks.line(number), "2");
}

TEST_F(TcpElasticProcesses, members_go_on_with_an_arbiter_that_was_started_anew) {
  Processes ranks(5, job(3));
  for (const int number : {1, 2, 3}) ASSERT_EQ(ranks.line(number), "3");
  ranks.signal(0, SIGKILL);
  ranks.signal(2, SIGKILL);
  std::this_thread::sleep_for(300ms);  // the others have asked for the next epoch in vain
  files().set("next arbiter", files().get("address", 0s).value());
  for (const int number : {1, 3}) EXPECT_EQ(ranks.line(number), "2");
  EXPECT_EQ(ranks.line(4), "goes on with epoch 1 of members 1, 2, 3");
}

}  // namespace
}  // namespace oktopk::elastic_test
