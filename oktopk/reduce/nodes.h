// SPDX-License-Identifier: Apache-2.0
// Which ranks form a node, and the communicators inside and between nodes. Found once, when a NodeReducer is made.
#pragma once

#include <memory>
#include <vector>

#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/trace/trace.h"

namespace oktopk {

struct Nodes {
  // Collective. group = 0: the ranks that share a host are a node; g >= 1: g consecutive ranks are one. `traced` is
  // comm, or a tracing communicator around it; then the parts are traced too.
  Nodes(Communicator& comm, Communicator& traced, int group, const TraceRow& trace, Workspace& work);

  int leader() const { return leader_of[static_cast<std::size_t>(rank)]; }
  int count() const { return static_cast<int>(leaders.size()); }

  int rank;                               // of this rank among all
  std::vector<int> leader_of;             // by rank; the lowest rank of a node leads
  std::vector<int> leaders;               // increasing
  int largest = 1;                        // ranks of the largest node
  std::unique_ptr<Communicator> inside;   // the ranks of this node; the leader is its rank 0
  std::unique_ptr<Communicator> outside;  // the leaders; on other ranks those that do not lead
};

}  // namespace oktopk
