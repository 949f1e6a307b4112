// SPDX-License-Identifier: Apache-2.0
// The stores: files, and a server.
#include "oktopk/comm/transports.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"

namespace oktopk::rendezvous_test {
namespace {

using namespace std::chrono_literals;

class Stores : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "file") {
      directory = testing::TempDir() + "oktopk-" + make_random_secret();
      store = make_file_store(directory);
    } else {
      server = std::make_unique<RendezvousServer>(
          RendezvousServerOptions{.secret = kTestSecret, .encrypt = GetParam() == "sealed"});
      store = make_server_store({server->address(), kTestSecret, "", GetParam() == "sealed", 20s});
    }
  }
  void TearDown() override {
    if (!directory.empty()) std::filesystem::remove_all(directory);
  }

  std::string directory;
  std::unique_ptr<RendezvousServer> server;
  KeyValueStore store;
};

TEST_P(Stores, keep_bytes_and_take_new_ones) {
  const std::string bytes("a\0b\n", 4);
  store.set("key/1", bytes);
  EXPECT_EQ(store.get("key/1", 0s), bytes);
  store.set("key/1", "new");
  EXPECT_EQ(store.get("key/1", 0s), "new");
}

TEST_P(Stores, absent_key_is_nothing) { EXPECT_EQ(store.get("absent", 10ms), std::nullopt); }

TEST_P(Stores, get_waits_until_the_key_comes) {
  const KeyValueStore second =
      server == nullptr ? store : make_server_store({server->address(), kTestSecret, "", GetParam() == "sealed", 20s});
  std::jthread late([&] {
    std::this_thread::sleep_for(30ms);
    second.set("late", "here");
  });
  EXPECT_EQ(store.get("late", 20s), "here");
}

INSTANTIATE_TEST_SUITE_P(All, Stores, testing::Values("file", "server", "sealed"),
                         [](const auto& test) { return test.param; });

TEST(Rendezvous, directory_that_is_a_file_is_a_usage_error) {
  EXPECT_THROW(make_file_store("/dev/null/nothing"), UsageError);
}

TEST(Rendezvous, absent_server_is_a_comm_error_that_names_it) {
  const KeyValueStore store = make_server_store({"127.0.0.1:1", kTestSecret, "", false, 50ms});
  expect_error<CommError>("127.0.0.1:1", [&] { store.set("key", "value"); });
}

TEST(Rendezvous, random_secrets_differ) {
  EXPECT_NE(make_random_secret(), make_random_secret());
  EXPECT_EQ(make_random_secret().size(), 64u);
}

TEST(Rendezvous, log_keeps_the_newest_reasons) {
  RefusalLog log;
  for (int i = 0; i < 20; ++i) log.add(std::to_string(i));
  EXPECT_EQ(log.count(), 20u);
  EXPECT_EQ(log.last().size(), RefusalLog::kMostReasons);
  EXPECT_EQ(log.last().back(), "19");
}

}  // namespace
}  // namespace oktopk::rendezvous_test
