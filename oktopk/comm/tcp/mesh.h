// SPDX-License-Identifier: Apache-2.0
// Connects all ranks of transport "tcp" with each other. Every rank listens, writes its addresses into the store, reads
// those of the lower ranks and connects to them, by turns; a thread accepts the higher ranks meanwhile, and all agree
// on the processes that form the world (TcpGathering). The entry of a rank is removed when all have come. An entry
// that an earlier run left behind names another instance: it is read again. A rank that dies before the world is
// complete can be started anew. COST: (P-1) handshakes per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/comm/transports.h"

namespace oktopk {

struct TcpMesh {
  std::vector<TcpSession> sessions;  // by rank; the own one is closed
  std::uint64_t host = 0;            // host_identity() of this rank
  std::uint64_t membership = 0;      // a hash of job, epoch and the instances of all ranks
};

// UsageError names an option that breaks its rule; CommError names the ranks that did not come in time.
TcpMesh connect_mesh(const TcpOptions& options);

}  // namespace oktopk
