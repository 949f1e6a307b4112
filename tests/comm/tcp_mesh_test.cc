// SPDX-License-Identifier: Apache-2.0
// How ranks find each other, and the errors when they do not.
#include "oktopk/comm/tcp_mesh.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/tcp_socket.h"
#include "tests/support/tcp_world.h"
#include "tests/support/world.h"

namespace oktopk::tcp_mesh_test {
namespace {

using namespace std::chrono_literals;

template <class Error>
void expect_error(const TcpOptions& options, const std::string& text) {
  try {
    make_tcp_world(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TcpOptions good(int rank, int P) { return tcp_options(rank, P, make_memory_store(), kTestTimeout); }

TEST(TcpMesh, bad_options_are_usage_errors_that_name_the_value) {
  expect_error<UsageError>(good(3, 3), "rank 3");
  expect_error<UsageError>(good(0, 0), "size 0");
  TcpOptions options = good(0, 2);
  options.secret = "short";
  expect_error<UsageError>(options, "5 bytes");
  options = good(0, 2);
  options.store.reset();
  expect_error<UsageError>(options, "rendezvous");
  options.rendezvous = "nohost";
  expect_error<UsageError>(options, "host:port");
  options = good(0, 2);
  options.silence = 0s;
  expect_error<UsageError>(options, "silence");
  options = good(0, 2);
  options.interface = "none9";
  expect_error<UsageError>(options, "none9");
}

TEST(TcpMesh, missing_ranks_are_named) {
  TcpOptions options = good(0, 3);
  options.join_timeout = 100ms;
  expect_error<CommError>(options, "1, 2");
  options = good(2, 3);
  options.join_timeout = 100ms;
  expect_error<CommError>(options, "rank 1: did not come");
}

// A rank that does not come must not hide those that do.
TEST(TcpMesh, only_the_missing_rank_is_named) {
  const KeyValueStore store = make_memory_store();
  run_ranks(5, [&](int rank) {
    if (rank == 2) return;
    TcpOptions options = tcp_options(rank, 5, store, kTestTimeout);
    options.join_timeout = 2s;
    const std::string who = text_of("tcp: rank ", rank);
    const std::string text = rank < 2 ? who + ": these ranks did not come within 2 s: 2"
                                      : who + " could not join within 2 s: rank 2: did not come to the rendezvous";
    try {
      make_tcp_world(options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_EQ(error.what(), text);
    }
  });
}

// Rank 0 serves: it must not end its service before the others have read the entry of the last one.
TEST(TcpMesh, rank_that_comes_late_is_found_by_all) {
  const std::string address = "127.0.0.1:" + local_port(listen_at({"127.0.0.1", "0"}));
  run_ranks(5, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(1500ms);  // longer than the turn of a rank
    TcpOptions options{.rank = rank, .size = 5, .rendezvous = address, .secret = kTestSecret};
    barrier(*make_tcp_world(options));
  });
}

TEST(TcpMesh, rank_with_another_secret_is_refused) {
  const KeyValueStore store = make_memory_store();
  const auto log = std::make_shared<RefusalLog>();
  run_ranks(2, [&](int rank) {
    TcpOptions options = tcp_options(rank, 2, store, kTestTimeout);
    options.join_timeout = 1s;
    options.refusals = log;
    if (rank == 1) options.secret = "this one is not the secret";
    EXPECT_THROW(make_tcp_world(options), CommError);
  });
  EXPECT_GE(log->count(), 1u);
}

TEST(TcpMesh, entry_of_an_earlier_run_is_read_again) {
  const KeyValueStore store = make_memory_store();
  store.set("oktopk//1/0", "123 " + local_port(listen_at({"127.0.0.1", "0"})) + " 127.0.0.1");
  run_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(50ms);
    barrier(*make_tcp_world(tcp_options(rank, 2, store, kTestTimeout)));
  });
}

TEST(TcpMesh, rank_0_serves_the_rendezvous_again_and_again) {
  const std::string address = "127.0.0.1:" + local_port(listen_at({"127.0.0.1", "0"}));
  run_ranks(5, [&](int rank) {
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      TcpOptions options{.rank = rank, .size = 5, .rendezvous = address, .secret = kTestSecret, .epoch = epoch};
      const auto comm = make_tcp_world(options);
      barrier(*comm);
    }
  });
}

TEST(TcpMesh, server_of_somebody_else_is_used) {
  const RendezvousServer server({.secret = kTestSecret, .encrypt = true});
  run_ranks(3, [&](int rank) {
    TcpOptions options{.rank = rank, .size = 3, .rendezvous = server.address(), .secret = kTestSecret, .encrypt = true};
    barrier(*make_tcp_world(options));
  });
}

TEST(TcpMesh, ranks_meet_in_a_directory_and_clean_it_up) {
  const std::string directory = testing::TempDir() + "oktopk-" + make_random_secret();
  run_ranks(3, [&](int rank) {
    TcpOptions options{.rank = rank, .size = 3, .rendezvous = "file:" + directory, .secret = kTestSecret};
    barrier(*make_tcp_world(options));
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace oktopk::tcp_mesh_test
