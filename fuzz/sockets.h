// SPDX-License-Identifier: Apache-2.0
// Connections of the fuzz targets of transport tcp: over loopback, or inside this process. All waits end within
// kPatience; a target that gets there hangs, and aborts.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>
#include <string>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/comm/tcp/socket.h"
#include "tests/support/tcp_pair.h"

namespace oktopk::fuzz {

inline constexpr auto kPatience = std::chrono::seconds(9);
inline Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }

// Both ends of a connection have it.
inline TcpIdentity identity_of(TcpPurpose purpose, bool encrypt) {
  return {.secret = "a secret of the fuzzer", .job = "job", .purpose = purpose, .encrypt = encrypt};
}

// The listener of this process.
inline const Socket& listener() {
  static const Socket socket = listen_at({"127.0.0.1", "0"});
  return socket;
}
inline Endpoint endpoint() { return {"127.0.0.1", local_port(listener())}; }

// A signal of libFuzzer's clock may end a poll().
inline void await(int fd) {
  const Deadline deadline = soon();
  pollfd entry{fd, POLLIN, 0};
  while (::poll(&entry, 1, milliseconds_until(deadline)) <= 0) check(std::chrono::steady_clock::now() < deadline);
}

// The next caller, who is on the way.
inline Socket accept_caller() {
  await(listener().fd());
  Socket socket = accept_from(listener());
  check(socket.is_open());
  return socket;
}

// Writes as far as the peer reads: it may have dropped the connection.
inline void write_bravely(const Socket& socket, std::span<const std::byte> bytes) {
  try {
    write_fully(socket, bytes, soon());
  } catch (const CommError&) {
  }
}

}  // namespace oktopk::fuzz
