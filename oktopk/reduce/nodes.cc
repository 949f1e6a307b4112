// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/nodes.h"

#include <algorithm>

#include "oktopk/comm/decorators.h"

namespace oktopk {

Nodes::Nodes(Communicator& comm, Communicator& traced, int group, const TraceRow& trace, Workspace& work)
    : rank(comm.rank()), leader_of(static_cast<std::size_t>(comm.size())) {
  const int mine = group == 0 ? traced.host() : rank / group * group;
  allgather(traced, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(leader_of)), work);
  std::vector<int> ranks_inside;
  std::vector<int> others;  // ranks that do not lead
  for (int r = 0; r < comm.size(); ++r) {
    const int its_leader = leader_of[static_cast<std::size_t>(r)];
    (its_leader == r ? leaders : others).push_back(r);
    if (its_leader == mine) ranks_inside.push_back(r);
    largest = std::max(largest, static_cast<int>(std::ranges::count(leader_of, r)));
  }
  // Split from comm: the parts of the traced one would call their ranks by other numbers.
  inside = comm.split(mine, rank);
  outside = comm.split(mine == rank ? 0 : 1, rank);
  if ((inside->rank() == 0) != (mine == rank))
    fail_world(comm, "rank ", mine, " should lead this node, but is not its first");
  if (&traced == &comm) return;
  inside = std::make_unique<TracingCommunicator>(std::move(inside), trace, ranks_inside, "inside");
  outside = std::make_unique<TracingCommunicator>(std::move(outside), trace, mine == rank ? leaders : others);
}

}  // namespace oktopk
