// SPDX-License-Identifier: Apache-2.0
// A connection to the store of a RendezvousServer: one request and its reply at a time, from any thread.
#pragma once

#include <memory>
#include <mutex>

#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/comm/tcp/stream.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

// A new connection to the server. CommError when there is none by the deadline.
std::unique_ptr<TcpStream> connect_to_server(const ServerStoreOptions& options, Deadline deadline);

class RendezvousClient {
 public:
  explicit RendezvousClient(const ServerStoreOptions& options) : options_(options) {}

  // Connects if need be, asks, and waits for the reply for `wait` and the patience; over a new connection whenever the
  // old one broke. CommError when the patience is at its end.
  RendezvousRequest ask(const RendezvousRequest& request, Communicator::Duration wait);

 private:
  RendezvousRequest ask_by(const RendezvousRequest& request, Deadline deadline);

  const ServerStoreOptions options_;
  std::mutex mutex_;
  std::unique_ptr<TcpStream> stream_;
};

}  // namespace oktopk
