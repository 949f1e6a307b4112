// SPDX-License-Identifier: Apache-2.0
// Two ends of one connection inside this process, as sessions whose handshake is over.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "oktopk/comm/tcp/handshake.h"

namespace oktopk {

inline std::pair<TcpSession, TcpSession> make_session_pair(bool encrypt) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) throw CommError("socketpair failed");
  for (const int fd : ends) fcntl(fd, F_SETFL, O_NONBLOCK);
  const Key forth{std::byte{1}}, back{std::byte{2}};
  return {TcpSession{Socket(ends[0]), 1, 0, "there", encrypt, forth, back},
          TcpSession{Socket(ends[1]), 0, 0, "here", encrypt, back, forth}};
}

}  // namespace oktopk
