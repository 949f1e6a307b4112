// SPDX-License-Identifier: Apache-2.0
// The handshake of transport tcp. Somebody between both sides changes bytes: no change at all lets both of them end
// with the same keys, and any change makes the client refuse. A stranger who sends any bytes to the server or to the
// client is refused. All of it plain and encrypted.
#include <algorithm>
#include <array>
#include <future>
#include <optional>

#include "fuzz/sockets.h"
#include "fuzz/target.h"

namespace {

using namespace oktopk;

constexpr std::uint64_t kServer = 1, kClient = 3, kInstance = 5;
constexpr std::size_t kMostBytes = 1024;

TcpIdentity make_identity(bool encrypt, std::uint64_t id) {
  TcpIdentity identity = fuzz::identity_of(TcpPurpose::mesh, encrypt);
  identity.epoch = 7;
  identity.id = id;
  identity.instance = id == kServer ? kInstance : 0;
  identity.host = 9;
  return identity;
}

using MaybeSession = std::optional<TcpSession>;

// connect_session() on a thread of its own. Nothing: it refused.
std::future<MaybeSession> call(bool encrypt) {
  return std::async(std::launch::async, [encrypt]() -> MaybeSession {
    try {
      return connect_session({fuzz::endpoint(), kServer, kInstance}, make_identity(encrypt, kClient), fuzz::soon());
    } catch (const CommError&) {
      return std::nullopt;
    }
  });
}

// Passes a message on, with the bits of the input flipped. True if one was.
template <class Message>
bool pass_on(const Socket& from, const Socket& to, fuzz::Input& input) {
  std::array<std::byte, sizeof(Message)> bytes{};
  read_fully(from, bytes, fuzz::soon());
  bool is_changed = false;
  for (std::byte& byte : bytes) {
    const auto flips = static_cast<std::byte>(input.take());
    byte ^= flips;
    is_changed = is_changed || flips != std::byte{0};
  }
  write_fully(to, bytes, fuzz::soon());
  return is_changed;
}

// The server's session, if it took the client. `is_changed` tells whether any byte was.
MaybeSession serve_changed(fuzz::Input& input, bool encrypt, bool& is_changed) {
  const Socket outside = fuzz::accept_caller();
  auto [near, far] = make_session_pair(false);
  const TcpIdentity mine = make_identity(encrypt, kServer);
  ServerHandshake server(std::move(near.socket), fuzz::soon());
  try {
    is_changed = pass_on<TcpHello>(outside, far.socket, input);
    fuzz::check(!server.advance(mine));
    is_changed |= pass_on<TcpAnswer>(far.socket, outside, input);
    is_changed |= pass_on<Key>(outside, far.socket, input);
    fuzz::check(server.advance(mine) && !is_changed);
    is_changed |= pass_on<Key>(far.socket, outside, input);
    return server.take();
  } catch (const CommError&) {
    fuzz::check(is_changed);
    return std::nullopt;
  }
}

void run_between(fuzz::Input& input, bool encrypt) {
  bool is_changed = false;
  auto calling = call(encrypt);
  const MaybeSession server = serve_changed(input, encrypt, is_changed);
  const MaybeSession client = calling.get();
  fuzz::check(client.has_value() == !is_changed);
  if (!client.has_value()) return;
  fuzz::check(server.has_value() && server->id == kClient && client->host == 9 && server->host == 9);
  fuzz::check(server->from_peer == client->to_peer && server->to_peer == client->from_peer);
  fuzz::check((client->to_peer == client->from_peer) == !encrypt);
}

// Any bytes in pieces.
void run_server(fuzz::Input& input, bool encrypt) {
  auto [near, far] = make_session_pair(false);
  ServerHandshake server(std::move(near.socket), fuzz::soon());
  const std::size_t piece = 1 + input.take();
  try {
    for (std::size_t sent = 0; sent < kMostBytes && !input.rest().empty(); sent += piece) {
      write_fully(far.socket, input.take_bytes(piece), fuzz::soon());
      fuzz::check(!server.advance(make_identity(encrypt, kServer)));
    }
  } catch (const CommError&) {
  }
}

void run_client(fuzz::Input& input, bool encrypt) {
  auto calling = call(encrypt);
  {
    const Socket outside = fuzz::accept_caller();
    fuzz::write_bravely(outside, input.rest().first(std::min(input.rest().size(), kMostBytes)));
  }
  fuzz::check(!calling.get().has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const unsigned kind = input.take();
  const bool encrypt = kind / 4 % 2 == 1;
  if (kind % 4 == 0) run_between(input, encrypt);
  if (kind % 4 == 1) run_client(input, encrypt);
  if (kind % 4 >= 2) run_server(input, encrypt);
  return 0;
}
