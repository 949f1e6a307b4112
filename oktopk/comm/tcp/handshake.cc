// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/handshake.h"

#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"

namespace oktopk {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel in the order of little endian");

template <class T>
std::span<std::byte> writable(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}
template <class T>
std::span<const std::byte> readable(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The proof of one role over everything that both sides said.
Key prove(const TcpIdentity& mine, std::string_view role, const TcpHello& hello, const TcpAnswer& answer) {
  std::array<std::byte, 32 + sizeof hello + sizeof answer> text{};
  std::memcpy(text.data(), role.data(), role.size());
  std::memcpy(text.data() + 32, &hello, sizeof hello);
  std::memcpy(text.data() + 32 + sizeof hello, &answer, sizeof answer);
  return hmac_sha256(mine.secret, text);
}

Key session_key(const TcpIdentity& mine, std::string_view direction, const TcpHello& hello, const TcpAnswer& answer) {
  std::array<std::byte, 2 * sizeof(Key)> salt{};
  std::memcpy(salt.data(), hello.nonce.data(), sizeof(Key));
  std::memcpy(salt.data() + sizeof(Key), answer.nonce.data(), sizeof(Key));
  return derive_key(mine.secret, salt, direction);
}

void set_keys(TcpSession& session, const TcpIdentity& mine, bool is_client, const TcpHello& hello,
              const TcpAnswer& answer) {
  session.encrypt = mine.encrypt;
  if (!mine.encrypt) return;
  const Key from_client = session_key(mine, "oktopk tcp client to server", hello, answer);
  const Key from_server = session_key(mine, "oktopk tcp server to client", hello, answer);
  session.to_peer = is_client ? from_client : from_server;
  session.from_peer = is_client ? from_server : from_client;
}

void expect_same(bool same, const char* reason) {
  if (!same) fail<CommError>(reason);
}

}  // namespace

TcpSession connect_session(const TcpTarget& target, const TcpIdentity& mine, Deadline deadline) {
  TcpSession session{connect_to(target.endpoint, deadline), target.id, 0, target.endpoint.text()};
  session.instance = target.instance;
  TcpHello hello{kTcpMagic,       hash_text(mine.job), mine.epoch,   mine.id,      target.id, mine.instance,
                 target.instance, mine.host,           mine.purpose, mine.encrypt, {}};
  fill_random(hello.nonce);
  TcpAnswer answer{};
  Key proof{};
  try {
    write_fully(session.socket, readable(hello), deadline);
    read_fully(session.socket, writable(answer), deadline);
    expect_same(answer.magic == kTcpMagic, "does not speak this protocol");
    write_fully(session.socket, prove(mine, "client", hello, answer), deadline);
    read_fully(session.socket, proof, deadline);
  } catch (const CommError& error) {
    fail<CommError>("tcp: the listener at ", session.address, " ", error.what(),
                    " during the handshake; secret, job, epoch and encrypt must be equal on all ranks");
  }
  if (!equal_in_constant_time(proof, prove(mine, "server", hello, answer)))
    fail<CommError>("tcp: the listener at ", session.address, " does not have the secret of this job");
  session.host = answer.host;
  set_keys(session, mine, true, hello, answer);
  return session;
}

ServerHandshake::ServerHandshake(Socket socket, Deadline deadline)
    : session_{std::move(socket), 0, 0, {}}, deadline_(deadline) {
  session_.address = peer_text(session_.socket);
}

bool ServerHandshake::advance(const TcpIdentity& mine) {
  while (true) {
    const auto all = answered_ ? std::span<std::byte>(proof_) : writable(hello_);
    const std::size_t count = read_some(session_.socket, all.subspan(received_));
    received_ += count;
    if (!answered_ && received_ >= sizeof hello_.magic)
      expect_same(hello_.magic == kTcpMagic, "does not speak this protocol");
    if (received_ == all.size()) {
      if (answered_) return verify(mine);
      answer(mine);
    } else if (count == 0) {
      expect_same(std::chrono::steady_clock::now() < deadline_, "did not end its handshake in time");
      return false;
    }
  }
}

void ServerHandshake::answer(const TcpIdentity& mine) {
  expect_same(hello_.purpose == mine.purpose, "wants something that is not served here");
  expect_same(hello_.job == hash_text(mine.job), "belongs to another job");
  expect_same(hello_.epoch == mine.epoch, "belongs to another epoch");
  expect_same(hello_.server == mine.id && hello_.server_instance == mine.instance, "looks for another listener");
  expect_same(hello_.encrypt == static_cast<std::uint32_t>(mine.encrypt), "has another setting of encrypt");
  answer_ = {kTcpMagic, mine.host, {}};
  fill_random(answer_.nonce);
  // It fits into the buffer of a new connection.
  expect_same(write_some(session_.socket, readable(answer_)) == sizeof answer_, "takes no answer");
  answered_ = true;
  received_ = 0;
}

bool ServerHandshake::verify(const TcpIdentity& mine) {
  expect_same(equal_in_constant_time(proof_, prove(mine, "client", hello_, answer_)),
              "does not have the secret of this job");
  const Key proof = prove(mine, "server", hello_, answer_);
  expect_same(write_some(session_.socket, proof) == proof.size(), "takes no proof");
  session_.id = hello_.client;
  session_.host = hello_.host;
  session_.instance = hello_.client_instance;
  set_keys(session_, mine, false, hello_, answer_);
  return true;
}

}  // namespace oktopk
