// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/nodes.h"

#include <algorithm>

#include "oktopk/comm/decorators.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer_options.h"

namespace oktopk {
namespace {

// The leader's part, of a node of `ranks` ranks among `nodes` nodes.
Prediction predict_nodes(const Allreduce& outside, const Problem& problem, int nodes, int ranks) {
  Problem leaders = problem;
  leaders.P = nodes;
  Prediction prediction = outside.predict(leaders);
  if (ranks <= 1) return prediction;
  const bool takes_union = residual_rule(outside.options().residual).takes_union;
  const auto applied = [&](double of_union) {
    return problem.gathered > 0 ? problem.gathered : takes_union ? of_union : problem.k;
  };
  const auto inside = [&](double entries) {
    return node_sum_cost(problem.n, ranks) + (outside.is_dense() ? node_share_values_cost(problem.n, ranks)
                                                                 : node_share_entries_cost(entries + problem.k, ranks));
  };
  prediction.expected += inside(applied(leaders.union_of(nodes)));
  prediction.bound += inside(applied(std::min(problem.n, nodes * problem.k)));
  prediction.bound += Cost{.bytes = 8.0 * ranks};  // regions differ by one value
  return prediction;
}

}  // namespace

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

Prediction predict_in_nodes(const Allreduce& outside, const Problem& problem, int group) {
  return predict_nodes(outside, problem, (problem.P + group - 1) / group, std::min(group, problem.P));
}

Prediction predict_step(const NodeReducer& reducer, const Problem& problem) {
  const ReducerOptions& options = reducer.options_;
  const Nodes& here = *reducer.nodes_;
  const auto outside = make_allreduce(find_preset(options.preset), options.allreduce);
  const int count = (problem.P + here.largest - 1) / here.largest;
  const int nodes = problem.P == reducer.comm().size() ? here.count() : count;
  const Prediction prediction = predict_nodes(*outside, problem, nodes, std::min(here.largest, problem.P));
  return with_agreement(prediction, options, problem.P, nodes);
}

}  // namespace oktopk
