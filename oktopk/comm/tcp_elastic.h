// SPDX-License-Identifier: Apache-2.0
// A job over TCP whose ranks change (elastic_world.h). The arbiter is a RendezvousServer outside of the ranks: `oktopk
// run` serves one. Members keep a connection to it; when that breaks, the member is lost.
#pragma once

#include <cstdint>
#include <memory>

#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/tcp.h"

namespace oktopk {

struct TcpElasticOptions {
  // rendezvous is host:port of the server. rank, size, store and epoch are not read.
  TcpOptions tcp;
  // The first epoch begins when so many have joined.
  int least = 1;
};

// Joins the job and returns when this member is in an epoch, for which it waits up to join_timeout.
std::unique_ptr<ElasticWorld> make_tcp_elastic_world(const TcpElasticOptions& options);

}  // namespace oktopk
