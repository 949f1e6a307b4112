// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed, stopped, or end in the middle: all others throw, soon, and name the culprit.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/transports.h"
#include "tests/tcp/processes.h"

namespace oktopk::failures_test {
namespace {

using namespace std::chrono_literals;

// A directory in which the ranks of one test meet.
class TcpProcesses : public testing::TestWithParam<bool> {
 protected:
  TcpProcesses() : directory(testing::TempDir() + "oktopk-" + make_random_secret()) {}
  ~TcpProcesses() override { std::filesystem::remove_all(directory); }

  std::unique_ptr<Communicator> join(int rank, int P, Communicator::Duration silence = 60s) const {
    TcpOptions options{.rank = rank, .size = P, .rendezvous = "file:" + directory, .secret = "a secret for tests"};
    options.interface = "127.0.0.1";
    options.encrypt = GetParam();
    options.silence = silence;
    options.timeout = 300s;  // failures must be found without it
    return make_tcp_world(options);
  }

  // Every rank says "ready" and then exchanges until something fails.
  auto forever(int P, Communicator::Duration silence = 60s) const {
    return [this, P, silence](int rank, const Processes::Say& say) {
      const auto comm = join(rank, P, silence);
      barrier(*comm);
      say("ready");
      while (true) {
        barrier(*comm);
        std::this_thread::sleep_for(1ms);
      }
    };
  }
  static void await_all(Processes& ranks, int P) {
    for (int rank = 0; rank < P; ++rank) ASSERT_EQ(ranks.line(rank), "ready");
  }
  static void expect_text(const std::string& line, const std::string& text) {
    EXPECT_NE(line.find(text), std::string::npos) << line;
  }

  std::string directory;
};

TEST_P(TcpProcesses, killed_rank_is_named_by_all) {
  Processes ranks(3, forever(3));
  await_all(ranks, 3);
  ranks.signal(1, SIGKILL);
  for (const int rank : {0, 2}) {
    const std::string line = ranks.line(rank);
    expect_text(line, "the world is dead: rank 1 (");
    expect_text(line, "it died or was killed");
  }
}

TEST_P(TcpProcesses, two_killed_at_once_end_the_others) {
  Processes ranks(5, forever(5));
  await_all(ranks, 5);
  ranks.signal(1, SIGKILL);
  ranks.signal(4, SIGKILL);
  for (const int rank : {0, 2, 3}) expect_text(ranks.line(rank), "it died or was killed");
}

TEST_P(TcpProcesses, stopped_rank_is_missed_and_learns_it_later) {
  Processes ranks(3, forever(3, 2s));
  await_all(ranks, 3);
  ranks.signal(2, SIGSTOP);
  for (const int rank : {0, 1}) {
    const std::string line = ranks.line(rank);
    expect_text(line, "the world is dead: rank 2 (");
    expect_text(line, "has been silent");
  }
  ranks.signal(2, SIGCONT);
  expect_text(ranks.line(2), "the world is dead");
}

TEST_P(TcpProcesses, short_stop_is_forgiven) {
  Processes ranks(2, [this](int rank, const Processes::Say& say) {
    const auto comm = join(rank, 2, 20s);
    say("ready");
    for (int i = 0; i < 200; ++i) {
      barrier(*comm);
      std::this_thread::sleep_for(2ms);
    }
    say("fine");
  });
  await_all(ranks, 2);
  ranks.signal(1, SIGSTOP);
  std::this_thread::sleep_for(200ms);
  ranks.signal(1, SIGCONT);
  for (const int rank : {0, 1}) EXPECT_EQ(ranks.line(rank), "fine");
}

TEST_P(TcpProcesses, busy_rank_is_not_missed) {
  Processes ranks(2, [this](int rank, const Processes::Say& say) {
    const auto comm = join(rank, 2, 5s);
    if (rank == 1) std::this_thread::sleep_for(7s);  // longer than the silence that is allowed
    barrier(*comm);
    say("fine");
  });
  for (const int rank : {0, 1}) EXPECT_EQ(ranks.line(rank), "fine");
}

TEST_P(TcpProcesses, rank_that_throws_is_named) {
  Processes ranks(3, [this](int rank, const Processes::Say&) {
    const auto comm = join(rank, 3);
    while (true) {
      barrier(*comm);
      if (rank == 2) throw std::runtime_error("mine");
    }
  });
  EXPECT_EQ(ranks.line(2), "mine");
  for (const int rank : {0, 1}) expect_text(ranks.line(rank), "rank 2");
}

INSTANTIATE_TEST_SUITE_P(All, TcpProcesses, testing::Bool(),
                         [](const auto& test) { return test.param ? "sealed" : "plain"; });

}  // namespace
}  // namespace oktopk::failures_test
