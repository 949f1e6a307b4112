// SPDX-License-Identifier: Apache-2.0
// How ranks find each other, and the errors when they do not.
#include "oktopk/comm/tcp/mesh.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/tcp/socket.h"
#include "tests/support/message.h"
#include "tests/support/tcp_world.h"
#include "tests/support/world.h"

namespace oktopk::tcp_mesh_test {
namespace {

using namespace std::chrono_literals;

void expect_join_fails(std::string_view words, const TcpOptions& options) {
  expect_error<CommError>(words, [&] { make_tcp_world(options); });
}

TEST(TcpMesh, bad_options_are_usage_errors_that_name_the_value) {
  struct Bad {
    std::string_view words;
    void (*spoil)(TcpOptions&);
  };
  const Bad kBad[] = {
      {"rank 3", [](TcpOptions& o) { o.rank = 3; }},
      {"size 0", [](TcpOptions& o) { o.size = 0; }},
      {"5 bytes", [](TcpOptions& o) { o.secret = "short"; }},
      {"rendezvous", [](TcpOptions& o) { o.store.reset(); }},
      {"host:port", [](TcpOptions& o) { o.store.reset(), o.rendezvous = "nohost"; }},
      {"silence", [](TcpOptions& o) { o.silence = 0s; }},
      {"none9", [](TcpOptions& o) { o.interface = "none9"; }},
  };
  for (const Bad& bad : kBad) {
    TcpOptions options = tcp_options(0, 2, make_memory_store(), kTestTimeout);
    bad.spoil(options);
    expect_error(bad.words, [&] { make_tcp_world(options); });
  }
}

TEST(TcpMesh, missing_ranks_are_named) {
  for (const auto& [rank, words] : {std::pair{0, "1, 2"}, {2, "rank 1: did not come"}}) {
    TcpOptions options = tcp_options(rank, 3, make_memory_store(), kTestTimeout);
    options.join_timeout = 100ms;
    expect_join_fails(words, options);
  }
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
    EXPECT_EQ(message_of<CommError>([&] { make_tcp_world(options); }), text);
  });
}

// Rank 1 meets rank 0 and breaks off, rank 2 waits for it in vain and gives up first.
TEST(TcpMesh, rank_that_gives_up_is_not_blamed_by_those_that_wait_longer) {
  const KeyValueStore store = make_memory_store();
  run_ranks(3, [&](int rank) {
    TcpOptions options = tcp_options(rank, 3, store, kTestTimeout);
    const auto start = std::chrono::steady_clock::now();
    if (rank == 0) {
      options.join_timeout = 2500ms;
      EXPECT_EQ(message_of<CommError>([&] { make_tcp_world(options); }),
                "tcp: rank 0: these ranks did not come within 2.5 s: 1");
    } else if (rank == 1) {
      options.look = [&] {
        if (std::chrono::steady_clock::now() > start + 500ms) fail<CommError>("it breaks off");
      };
      expect_join_fails("it breaks off", options);
    } else {
      std::this_thread::sleep_for(700ms);
      options.join_timeout = 1s;
      expect_join_fails("could not join within 1 s: rank 1: ", options);
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

TEST(TcpMesh, ranks_meet_at_a_server_of_somebody_else_and_in_a_directory_that_they_clean_up) {
  const RendezvousServer server({.secret = kTestSecret, .encrypt = true});
  const std::string directory = testing::TempDir() + "oktopk-" + make_random_secret();
  for (const std::string& place : {server.address(), "file:" + directory})
    run_ranks(3, [&](int rank) {
      TcpOptions options{.rank = rank, .size = 3, .rendezvous = place, .secret = kTestSecret, .encrypt = true};
      barrier(*make_tcp_world(options));
    });
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

// The entries of two starts of one job of three ranks in one store: `seen[start][rank][r]` is the start whose entry of
// rank r this rank finds there.
class TwoStarts {
 public:
  using Seen = std::array<std::array<std::array<int, 3>, 3>, 2>;

  explicit TwoStarts(const Seen& seen) : seen_(seen) {}

  TcpOptions options(int start, int rank) const {
    const auto key_of = [](const std::string& key, int whose) { return text_of(whose, key); };
    const auto rank_in = [](const std::string& key) { return static_cast<std::size_t>(key.back() - '0'); };
    const auto mine = seen_[static_cast<std::size_t>(start)][static_cast<std::size_t>(rank)];
    KeyValueStore store;
    store.set = [=, all = all_](const std::string& key, const std::string& value) {
      all.set(key_of(key, start), value);
    };
    store.get = [=, all = all_](const std::string& key, Communicator::Duration timeout) {
      return all.get(key_of(key, mine[rank_in(key)]), timeout);
    };
    TcpOptions options = tcp_options(rank, 3, store, kTestTimeout);
    options.silence = 1s;
    return options;
  }

 private:
  const Seen seen_;
  const KeyValueStore all_ = make_memory_store();
};

// Six ranks form a ring in which each has a connection with a rank 0, 1 and 2: its world looks complete.
TEST(TcpMesh, two_starts_whose_ranks_are_mixed_are_an_error_on_all_of_them) {
  const TwoStarts starts({{{{{0, 0, 0}, {0, 0, 0}, {0, 1, 0}}}, {{{1, 1, 1}, {1, 1, 1}, {1, 0, 1}}}}});
  run_ranks(6, [&](int i) {
    TcpOptions options = starts.options(i / 3, i % 3);
    options.job = "twice";
    expect_join_fails("belongs to another start of job \"twice\"", options);
  });
}

// Whichever entries they find, ranks that are connected agree on who is in the world, or there is an error.
TEST(TcpMesh, two_starts_never_share_a_world) {
  for (int pattern = 0; pattern < 64; pattern += 9) {
    TwoStarts::Seen seen{};
    for (std::size_t i = 0; i < 6; ++i) {  // start and rank: rank 1 looks for rank 0, rank 2 for 0 and 1
      constexpr std::array<int, 6> kFirstBit{0, 0, 1, 3, 3, 4};
      for (std::size_t r = 0; r < i % 3; ++r)
        seen[i / 3][i % 3][r] = static_cast<int>(i / 3) ^ ((pattern >> (kFirstBit[i] + static_cast<int>(r))) & 1);
      seen[i / 3][i % 3][i % 3] = static_cast<int>(i / 3);
    }
    const TwoStarts starts(seen);
    std::array<std::array<int, 3>, 6> members{};
    run_ranks(6, [&](int i) {
      TcpOptions options = starts.options(i / 3, i % 3);
      options.join_timeout = 800ms;
      try {
        const auto comm = make_tcp_world(options);
        const int own = 1 + i / 3;
        std::array<int, 3> all{};
        Workspace work;
        allgather(*comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)), work);
        members[static_cast<std::size_t>(i)] = all;
      } catch (const CommError&) {  // members stay 0
      }
    });
    for (std::size_t i = 0; i < 6; ++i) {
      const std::array<int, 3>& own = members[i];
      EXPECT_TRUE(own[0] != 0 || pattern != 0) << "rank " << i << " of two starts that do not meet";
      for (std::size_t rank = 0; rank < 3 && own[0] != 0; ++rank) {
        const auto& other = members[static_cast<std::size_t>(own[rank] - 1) * 3 + rank];
        EXPECT_TRUE(other == own || other[0] == 0) << "pattern " << pattern << ", rank " << rank << " of rank " << i;
      }
    }
  }
}

// Rank 1 of a second start was here and has gone; each rank of the first one comes in the end.
TEST(TcpMesh, rank_of_a_start_that_is_gone_leaves_its_place_to_the_other) {
  const KeyValueStore store = make_memory_store();
  run_ranks(4, [&](int i) {
    TcpOptions options = tcp_options(i == 3 ? 1 : i, 3, store, kTestTimeout);
    if (i == 3) {
      options.join_timeout = 600ms;
      expect_join_fails("rank 1: these ranks did not come within 0.6 s: 2", options);
      return;
    }
    if (i > 0) std::this_thread::sleep_for(300ms);
    if (i == 2) std::this_thread::sleep_for(600ms);
    barrier(*make_tcp_world(options));
  });
}

// Each of the ranks that came first dies while the last one is late, and is started anew.
TEST(TcpMesh, rank_that_restarts_during_the_join_is_taken_back) {
  for (int restarting = 0; restarting < 3; ++restarting) {
    const KeyValueStore store = make_memory_store();
    run_ranks(4, [&](int rank) {
      TcpOptions options = tcp_options(rank, 4, store, kTestTimeout);
      if (rank == 3) std::this_thread::sleep_for(800ms);
      if (rank == restarting) {
        options.join_timeout = 400ms;
        EXPECT_THROW(make_tcp_world(options), CommError);
        options.join_timeout = kTestTimeout;
      }
      barrier(*make_tcp_world(options));
    });
  }
}

}  // namespace
}  // namespace oktopk::tcp_mesh_test
