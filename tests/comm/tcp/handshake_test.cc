// SPDX-License-Identifier: Apache-2.0
// Members prove themselves; everybody else is dropped, with a reason, and the listener goes on.
#include "oktopk/comm/tcp/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/listener.h"
#include "tests/support/message.h"

namespace oktopk::tcp_handshake_test {
namespace {

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

TcpIdentity identity(std::uint64_t id) {
  return {.secret = "a secret for tests", .job = "job", .epoch = 3, .encrypt = true, .id = id, .host = 100 + id};
}

template <class T>
void put(const Socket& socket, const T& value) {
  write_fully(socket, std::as_bytes(std::span(&value, 1)), soon());
}
template <class T>
T get(const Socket& socket) {
  T value{};
  read_fully(socket, std::as_writable_bytes(std::span(&value, 1)), soon());
  return value;
}

class TcpHandshake : public testing::Test {
 protected:
  TcpHandshake() : listener(listen_at({"127.0.0.1", "0"}), served(), log) {}

  static TcpIdentity served() {
    TcpIdentity mine = identity(0);
    mine.instance = 77;
    return mine;
  }
  TcpTarget target() const { return {{"127.0.0.1", local_port(listener.socket())}, 0, 77}; }

  // Lets the listener work while `act` does.
  std::vector<TcpSession> serve(const std::function<void()>& act) {
    std::atomic<bool> is_over = false;
    std::jthread client([&] {
      act();
      is_over = true;
    });
    std::vector<TcpSession> all;
    const std::uint64_t before = log->count();
    while (!is_over || (all.empty() && log->count() == before && std::chrono::steady_clock::now() < end))
      for (TcpSession& session : listener.advance()) all.push_back(std::move(session));
    return all;
  }
  Socket accept_at(const Socket& where) const {
    Socket socket;
    while (!socket.is_open() && std::chrono::steady_clock::now() < end) socket = accept_from(where);
    return socket;
  }
  void expect_refused(const TcpIdentity& mine, const std::string& reason) {
    const auto proved = serve([&] { EXPECT_THROW(connect_session(target(), mine, soon()), CommError); });
    EXPECT_TRUE(proved.empty());
    ASSERT_FALSE(log->last().empty());
    expect_contains(log->last().back(), reason);
  }

  const Deadline end = soon();
  std::shared_ptr<RefusalLog> log = std::make_shared<RefusalLog>();
  TcpListener listener;
};

TEST_F(TcpHandshake, members_learn_each_other_and_share_keys) {
  TcpSession client;
  auto proved = serve([&] { client = connect_session(target(), identity(5), soon()); });
  ASSERT_EQ(proved.size(), 1u);
  EXPECT_EQ(proved[0].id, 5u);
  EXPECT_EQ(proved[0].host, 105u);
  EXPECT_EQ(client.host, 100u);
  EXPECT_EQ(client.to_peer, proved[0].from_peer);
  EXPECT_EQ(client.from_peer, proved[0].to_peer);
  EXPECT_NE(client.to_peer, client.from_peer);
}

TEST_F(TcpHandshake, every_wrong_setting_is_refused) {
  const std::pair<const char*, void (*)(TcpIdentity&)> kWrong[] = {
      {"secret", [](TcpIdentity& mine) { mine.secret = "another secret here"; }},
      {"job", [](TcpIdentity& mine) { mine.job = "other"; }},
      {"epoch", [](TcpIdentity& mine) { mine.epoch = 2; }},
      {"encrypt", [](TcpIdentity& mine) { mine.encrypt = false; }},
      {"not served", [](TcpIdentity& mine) { mine.purpose = TcpPurpose::store; }},
  };
  for (const auto& [reason, spoil] : kWrong) {
    TcpIdentity mine = identity(1);
    spoil(mine);
    expect_refused(mine, reason);
  }
  EXPECT_EQ(log->count(), 5u);
}

TEST_F(TcpHandshake, listener_without_the_secret_is_refused_by_the_client) {
  // It answers as a server would, but cannot prove itself.
  const Socket impostor = listen_at({"127.0.0.1", "0"});
  std::jthread thread([&] {
    const Socket socket = accept_at(impostor);
    put(socket, TcpAnswer{get<TcpHello>(socket).magic, 0, {}});
    put(socket, get<Key>(socket));  // the client's own proof, sent back
  });
  const TcpTarget there{{"127.0.0.1", local_port(impostor)}, 0, 77};
  EXPECT_THROW(connect_session(there, identity(1), soon()), CommError);
}

TEST_F(TcpHandshake, recorded_handshake_is_refused) {
  // A man in the middle records what a member says.
  TcpHello hello{};
  Key proof{};
  const Socket middle = listen_at({"127.0.0.1", "0"});
  std::jthread member([&] {
    const TcpTarget there{{"127.0.0.1", local_port(middle)}, 0, 77};
    EXPECT_THROW(connect_session(there, identity(1), soon()), CommError);
  });
  {
    const Socket socket = accept_at(middle);
    hello = get<TcpHello>(socket);
    put(socket, TcpAnswer{hello.magic, 0, {}});
    proof = get<Key>(socket);
  }
  member.join();
  const auto proved = serve([&] {
    const Socket socket = connect_to(target().endpoint, soon());
    put(socket, hello);
    get<TcpAnswer>(socket);
    put(socket, proof);
    EXPECT_THROW(get<std::byte>(socket), CommError);
  });
  EXPECT_TRUE(proved.empty());
  expect_contains(log->last().back(), "secret");
}

TEST_F(TcpHandshake, garbage_and_scans_are_dropped_and_others_served) {
  serve([&] {
    const Socket socket = connect_to(target().endpoint, soon());
    const std::string garbage = "GET / HTTP/1.1\r\n\r\n";
    write_fully(socket, std::as_bytes(std::span(garbage)), soon());
    EXPECT_THROW(get<std::byte>(socket), CommError);
  });
  serve([&] { connect_to(target().endpoint, soon()); });
  EXPECT_EQ(log->count(), 2u);
  const Socket half = connect_to(target().endpoint, soon());
  put(half, std::array<std::byte, 3>{});
  EXPECT_EQ(serve([&] { connect_session(target(), identity(2), soon()); }).size(), 1u);
}

}  // namespace
}  // namespace oktopk::tcp_handshake_test
