// SPDX-License-Identifier: Apache-2.0
// Transport "tcp": ranks that are processes, on one host or many, without MPI. Every pair of ranks has one connection.
// A secret that all ranks share proves membership; encrypt hides and protects the messages, too (docs/tcp.md,
// SECURITY.md). In a library built without it (no_tcp.cc) tcp_available() is false and the rest throws UsageError.
//
// Failures: a connection that closes without a goodbye, a peer that is silent for longer than `silence`, and a rank
// that gives up are a CommError on every rank at once, with one text that names the culprit. Ranks in texts are those
// of the world, also in its parts. A thread of its own sends signs of life and makes progress while nobody waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "oktopk/comm/communicator.h"
#include "oktopk/comm/rendezvous.h"

namespace oktopk {

bool tcp_available();

struct TcpOptions {
  int rank = 0;
  int size = 1;
  // host:port, where rank 0 listens unless somebody already does there (a RendezvousServer), or file:DIRECTORY.
  std::string rendezvous;
  // Instead of `rendezvous`: any other store.
  std::optional<KeyValueStore> store;
  std::string secret;       // equal on all ranks, at least kLeastSecretBytes
  bool encrypt = false;     // AES-256-GCM; equal on all ranks
  std::string job;          // a name that keeps the jobs that share a store and a secret apart
  std::uint64_t epoch = 1;  // worlds of one job, one after the other, have different epochs
  // Where this rank listens: an address or the name of a network interface. Empty: the address that faces the
  // rendezvous, or all addresses where that is no host.
  std::string interface;
  Communicator::Duration timeout = Communicator::kDefaultTimeout;       // of each wait
  Communicator::Duration join_timeout = Communicator::kDefaultTimeout;  // until all ranks are connected
  Communicator::Duration silence = std::chrono::seconds(10);            // a peer that says nothing for so long is lost
  // Messages that come before their receive are kept up to so many bytes per peer; then that peer has to wait.
  std::size_t early_bytes = std::size_t{64} << 20;
  std::shared_ptr<RefusalLog> refusals;  // may be null: connections that were dropped while the ranks gathered
};

// This rank of the world. Collective. UsageError names an option that breaks its rule; CommError names the ranks that
// did not come within join_timeout.
std::unique_ptr<Communicator> make_tcp_world(const TcpOptions& options);

}  // namespace oktopk
