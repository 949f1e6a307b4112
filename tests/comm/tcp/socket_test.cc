// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/socket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"

namespace oktopk::tcp_socket_test {
namespace {

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

TEST(TcpSocket, endpoint_is_read_and_written) {
  EXPECT_EQ(parse_endpoint("node7:29400").host, "node7");
  EXPECT_EQ(parse_endpoint("node7:29400").port, "29400");
  EXPECT_EQ(parse_endpoint("[fe80::1]:5").host, "fe80::1");
  EXPECT_EQ(parse_endpoint("[fe80::1]:5").text(), "[fe80::1]:5");
}

TEST(TcpSocket, bad_endpoint_is_a_usage_error) {
  for (const char* text : {"", "host", "host:", ":29400", "host:http", "host:70000", "::1:5", "host:-1"})
    EXPECT_THROW(parse_endpoint(text), UsageError) << text;
}

TEST(TcpSocket, connects_over_ipv4_and_moves_bytes) {
  const Socket listener = listen_at({"127.0.0.1", "0"});
  ASSERT_TRUE(listener.is_open());
  const Socket client = connect_to({"127.0.0.1", local_port(listener)}, soon());
  Socket server;
  while (!server.is_open()) server = accept_from(listener);
  const std::array<std::byte, 3> out{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> in{};
  write_fully(client, out, soon());
  read_fully(server, in, soon());
  EXPECT_EQ(in, out);
}

TEST(TcpSocket, connects_over_ipv6_where_there_is_one) {
  const auto all = addresses_of("");
  if (std::ranges::find(all, "::1") == all.end()) GTEST_SKIP() << "this host has no IPv6";
  const Socket listener = listen_at({"::1", "0"});
  ASSERT_TRUE(listener.is_open());
  EXPECT_TRUE(connect_to({"::1", local_port(listener)}, soon()).is_open());
}

TEST(TcpSocket, peer_of_a_listener_for_both_families_is_named_by_its_ipv4_address) {
  Socket listener;
  try {
    listener = listen_at({"::", "0"});
  } catch (const AddressError&) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  const Socket client = connect_to({"127.0.0.1", local_port(listener)}, soon());
  Socket server;
  while (!server.is_open()) server = accept_from(listener);
  EXPECT_EQ(peer_text(server), "127.0.0.1:" + local_port(client));
}

TEST(TcpSocket, listening_where_one_cannot_is_an_error_that_says_why) {
  const Socket listener = listen_at({"127.0.0.1", "0"});
  const Endpoint foreign{"192.0.2.1", "0"};  // reserved for documentation
  for (const Endpoint& endpoint : {Endpoint{"127.0.0.1", local_port(listener)}, foreign}) try {
      listen_at(endpoint);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const AddressError& error) {
      EXPECT_EQ(error.is_taken, endpoint.host != foreign.host);
    }
}

TEST(TcpSocket, connecting_to_nobody_is_a_comm_error) {
  const std::string port = local_port(listen_at({"127.0.0.1", "0"}));  // closed again
  EXPECT_THROW(connect_to({"127.0.0.1", port}, soon()), CommError);
}

TEST(TcpSocket, reading_ends_at_its_deadline) {
  const Socket listener = listen_at({"127.0.0.1", "0"});
  const Socket client = connect_to({"127.0.0.1", local_port(listener)}, soon());
  std::array<std::byte, 1> in{};
  EXPECT_THROW(read_fully(client, in, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)), CommError);
}

TEST(TcpSocket, knows_the_addresses_of_this_host) {
  EXPECT_FALSE(addresses_of("").empty());
  EXPECT_EQ(addresses_of("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_TRUE(addresses_of("no such interface").empty());
  EXPECT_EQ(address_towards({"127.0.0.1", "9"}), "127.0.0.1");
  EXPECT_EQ(host_identity(), host_identity());
}

}  // namespace
}  // namespace oktopk::tcp_socket_test
