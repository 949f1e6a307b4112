// SPDX-License-Identifier: Apache-2.0
// The server among strangers, and with many clients.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous_request.h"
#include "oktopk/comm/tcp_socket.h"
#include "oktopk/comm/transports.h"
#include "tests/support/tcp_world.h"

namespace oktopk::rendezvous_server_test {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return std::chrono::steady_clock::now() + 20s; }

TEST(RendezvousServer, short_secret_is_a_usage_error) {
  EXPECT_THROW(RendezvousServer({.secret = "short"}), UsageError);
}

TEST(RendezvousServer, taken_address_is_a_comm_error) {
  const RendezvousServer first({.secret = kTestSecret});
  EXPECT_THROW(RendezvousServer({.listen = first.address(), .secret = kTestSecret}), CommError);
}

TEST(RendezvousServer, stranger_is_refused_and_members_are_served) {
  const RendezvousServer server({.secret = kTestSecret});
  const KeyValueStore stranger = make_server_store({server.address(), "not the secret of the job", "", false, 100ms});
  EXPECT_THROW(stranger.set("key", "bad"), CommError);
  {
    const Socket scan = connect_to(parse_endpoint(server.address()), soon());
    const std::string garbage(1000, 'x');
    write_fully(scan, std::as_bytes(std::span(garbage)), soon());
    std::array<std::byte, 1> nothing{};
    EXPECT_THROW(read_fully(scan, nothing, soon()), CommError);
  }
  EXPECT_GE(server.refusals().count(), 2u);
  const KeyValueStore member = make_server_store({server.address(), kTestSecret, "", false, 20s});
  EXPECT_EQ(member.get("key", 0s), std::nullopt);
}

TEST(RendezvousServer, largest_value_that_can_be_set_can_be_read) {
  const RendezvousServer server({.secret = kTestSecret});
  const KeyValueStore store = make_server_store({server.address(), kTestSecret, "", false, 20s});
  constexpr std::size_t kHead = 1 + sizeof(std::uint64_t) + sizeof(std::uint32_t);
  const std::string largest(kMostRequestBytes - kHead - 1, 'x');
  store.set("k", largest);
  EXPECT_EQ(store.get("k", 20s), largest);
  EXPECT_THROW(store.set("k", largest + "x"), UsageError);
}

TEST(RendezvousServer, seven_clients_read_each_other) {
  const RendezvousServer server({.secret = kTestSecret});
  run_ranks(7, [&](int rank) {
    const KeyValueStore store = make_server_store({server.address(), kTestSecret, "", false, 20s});
    store.set(std::to_string(rank), "value " + std::to_string(rank));
    for (int other = 0; other < 7; ++other)
      EXPECT_EQ(store.get(std::to_string(other), 20s), "value " + std::to_string(other));
  });
}

}  // namespace
}  // namespace oktopk::rendezvous_server_test
