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
  // Process 0 is the arbiter; the others are members, which say "SIZE" once per epoch.
  auto job(int members) {
    return [this, members](int number, const Processes::Say& say) {
      const std::string secret = "a secret for tests";
      const KeyValueStore files = make_file_store(directory);
      if (number == 0) {
        const RendezvousServer server({.secret = secret, .grace = 3s});
        files.set("address", server.address());
        std::this_thread::sleep_for(300s);
      }
      TcpElasticOptions options{.least = members};
      options.tcp.rendezvous = files.get("address", 60s).value();
      options.tcp.secret = secret;
      options.tcp.silence = 2s;
      const auto world = make_tcp_elastic_world(options);
      while (true) {
        say(std::to_string(world->comm().size()));
        try {
          while (true) {
            barrier(world->comm());
            std::this_thread::sleep_for(1ms);
          }
        } catch (const CommError&) {
          world->regroup(0);
        }
      }
    };
  }
  ~TcpElasticProcesses() override { std::filesystem::remove_all(directory); }

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

}  // namespace
}  // namespace oktopk::elastic_test
