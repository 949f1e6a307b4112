// SPDX-License-Identifier: Apache-2.0
// A connection to a RendezvousServer: one request and its reply at a time, from any thread.
#pragma once

#include <memory>
#include <mutex>

#include "oktopk/comm/rendezvous_request.h"
#include "oktopk/comm/tcp_handshake.h"
#include "oktopk/comm/tcp_stream.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

class RendezvousClient {
 public:
  explicit RendezvousClient(const ServerStoreOptions& options);

  // Connects if need be, asks, and waits for the reply for `wait` and the patience. CommError when the connection
  // broke.
  RendezvousRequest ask_once(const RendezvousRequest& request, Communicator::Duration wait);
  // The same, over a new connection whenever the old one broke, until the patience is at its end.
  RendezvousRequest ask(const RendezvousRequest& request, Communicator::Duration wait);
  // The server sees the end of the connection; the next request makes a new one.
  void close();
  // Without the lock, which a thread of the parent may have held.
  void close_in_child() {
    if (stream_ != nullptr) stream_->close();
  }

 private:
  RendezvousRequest ask_by(const RendezvousRequest& request, Deadline deadline);
  Deadline deadline_after(Communicator::Duration wait) const;

  const ServerStoreOptions options_;
  TcpTarget target_;
  std::mutex mutex_;
  std::unique_ptr<TcpStream> stream_;
};

}  // namespace oktopk
