// SPDX-License-Identifier: Apache-2.0
// Mutual proof of membership before any other byte of a connection is believed. The client says who it is and sends a
// fresh nonce (Hello), the server answers with its own (Answer), then both prove that they have the secret by a
// HMAC-SHA256 over their role and both messages, the client first. All messages have a fixed size. A recorded
// handshake is worth nothing later, because the nonces differ. With encrypt, both directions get keys of their own from
// the secret and the nonces. COST: two round trips.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "oktopk/comm/tcp/crypto.h"
#include "oktopk/comm/tcp/socket.h"

namespace oktopk {

enum class TcpPurpose : std::uint32_t { mesh = 1, store = 2 };

// The settings that both ends of a connection must have in common, and the identity of one end.
struct TcpIdentity {
  std::string secret;
  std::string job;
  std::uint64_t epoch = 0;
  TcpPurpose purpose = TcpPurpose::mesh;
  bool encrypt = false;
  std::uint64_t id = 0;        // the rank
  std::uint64_t instance = 0;  // of a rank: random, told through the rendezvous
  std::uint64_t host = 0;      // host_identity()
};

// A connection whose ends have proved themselves to each other.
struct TcpSession {
  Socket socket;
  std::uint64_t id = 0;    // of the peer
  std::uint64_t host = 0;  // of the peer
  std::string address;     // of the peer, for texts
  bool encrypt = false;
  Key to_peer{}, from_peer{};  // where encrypt
  std::uint64_t instance = 0;  // of the peer
};

inline constexpr std::uint64_t kTcpMagic = 0x33'70'63'74'6b'74'6b'6f;  // "oktktcp3": handshake and frames

struct TcpHello {
  std::uint64_t magic, job, epoch, client, server, client_instance, server_instance, host;
  TcpPurpose purpose;
  std::uint32_t encrypt;
  Key nonce;
};
struct TcpAnswer {
  std::uint64_t magic, host;
  Key nonce;
};
static_assert(sizeof(TcpHello) == 104 && sizeof(TcpAnswer) == 48, "the structs travel as they are");

// Connects to the listener `server` with that instance. CommError when it cannot be reached or is not the one.
struct TcpTarget {
  Endpoint endpoint;
  std::uint64_t id = 0;
  std::uint64_t instance = 0;
};
TcpSession connect_session(const TcpTarget& target, const TcpIdentity& mine, Deadline deadline);

// The server's side, which never waits.
class ServerHandshake {
 public:
  ServerHandshake(Socket socket, Deadline deadline);

  // Reads and answers as far as it can; true when the session stands. CommError with the reason to drop it.
  bool advance(const TcpIdentity& mine);
  TcpSession take() { return std::move(session_); }
  int fd() const { return session_.socket.fd(); }
  const std::string& address() const { return session_.address; }
  void close_in_child() { session_.socket.close(); }

 private:
  void answer(const TcpIdentity& mine);
  bool verify(const TcpIdentity& mine);

  TcpSession session_;
  Deadline deadline_;
  TcpHello hello_{};
  TcpAnswer answer_{};
  Key proof_{};
  std::size_t received_ = 0;  // of hello_, then of proof_
  bool answered_ = false;
};

}  // namespace oktopk
