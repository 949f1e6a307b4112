// SPDX-License-Identifier: Apache-2.0
// Which ranks form a node, the communicators inside and between nodes, and the cost of a step in nodes.
#pragma once

#include <memory>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/trace/trace.h"

namespace oktopk {

class NodeReducer;

// Found once, when a NodeReducer is made.
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

// The cost of a step on the leader of a node of `group` ranks, without the notes.
Prediction predict_in_nodes(const Allreduce& outside, const Problem& problem, int group);
// The cost of a step at k on the leader of the largest node. With another P than the object's: of P ranks in nodes of
// that size.
Prediction predict_step(const NodeReducer& reducer, const Problem& problem);

}  // namespace oktopk
