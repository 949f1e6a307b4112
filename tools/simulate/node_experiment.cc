// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/node_experiment.h"

#include <vector>

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/cost.h"
#include "tools/simulate/timed_step.h"

namespace oktopk {
namespace {

std::size_t bytes_of(const Cuts& cuts, int first, int count) {
  const int P = static_cast<int>(cuts.size()) - 1;
  std::size_t bytes = 0;
  for (int d = 0; d < count; ++d) bytes += sizeof(float) * region(cuts, (first + d) % P).width();
  return bytes;
}

// Every rank sends to and hears from one other.
void swap_sizes(Communicator& node, int shift, std::size_t sent, std::size_t due, std::span<std::byte> shared) {
  const Send send{neighbour(node, shift), shared.first(sent)};
  Recv recv{neighbour(node, -shift), shared.first(due), 0};
  node.exchange({&send, 1}, {&recv, 1});
}

void sum_by_tree(Communicator& node, std::size_t bytes, std::span<std::byte> shared) {
  const int rank = node.rank();
  for (int step = 1; step < node.size(); step *= 2) {
    if ((rank & step) != 0) {
      const Send send{rank - step, shared.first(bytes)};
      return node.exchange({&send, 1}, {});
    }
    if (rank + step >= node.size()) continue;
    Recv recv{rank + step, shared.first(bytes), 0};
    node.exchange({}, {&recv, 1});
  }
}

void gather_to_leader(Communicator& node, const Cuts& cuts, std::span<std::byte> shared) {
  if (node.rank() != 0) {
    const Send send{0, shared.first(bytes_of(cuts, node.rank(), 1))};
    return node.exchange({&send, 1}, {});
  }
  std::vector<Recv> recvs;
  for (int r = 1; r < node.size(); ++r) recvs.push_back({r, shared.first(bytes_of(cuts, r, 1)), 0});
  node.exchange({}, recvs);
}

}  // namespace

void sized_node_sum(Communicator& node, Index n, std::span<std::byte> shared) {
  if (node_sums_by_tree(n, node.size())) return sum_by_tree(node, sizeof(float) * n, shared);
  const Cuts cuts = equal_cuts(n, node.size());
  for (const Phase& phase : circulant_phases(halving_skips(node.size()))) {
    const Hop& hop = phase.hops.front();
    swap_sizes(node, hop.shift, bytes_of(cuts, node.rank() + hop.first, hop.count),
               bytes_of(cuts, node.rank(), hop.count), shared);
  }
  gather_to_leader(node, cuts, shared);
}

SimulatedRow simulate_nodes(Communicator& comm, const SimulationSpec& spec, const SimulatedProblem& problem,
                            const std::string& preset, const Method& method, const SimulatedClock& clock) {
  require(method.group > 1 && problem.leaders.size() == 1, "simulate: nodes of ", method.group, " ranks, and ",
          problem.leaders.size(), " problems of their leaders");
  const int leader = comm.rank() / method.group * method.group;
  const auto node = comm.split(leader, comm.rank());
  const auto outside = comm.split(leader == comm.rank() ? 0 : 1, comm.rank());
  Workspace work;
  Bytes owned;
  if (comm.rank() == 0) owned.resize(sizeof(float) * std::size_t{problem.n});
  std::byte* address = owned.data();
  broadcast(comm, 0, std::as_writable_bytes(std::span(&address, 1)));
  const std::span<std::byte> shared(address, sizeof(float) * std::size_t{problem.n});
  const bool is_dense = find_preset(method.preset).residuals.front() == ResidualKind::none;

  const auto timed = [&](const Cost& cost, const auto& body) {
    return time_step(comm, *node, spec, clock, seconds_per_byte(cost, spec.kernel_prices()), body, work);
  };
  const int group = std::min(method.group, comm.size());
  const TimedStep sum =
      timed(node_sum_cost(problem.n, group), [&](Communicator& inside) { sized_node_sum(inside, problem.n, shared); });
  SimulatedRow row{.preset = preset};
  if (leader == comm.rank()) {
    SimulationSpec leaders = spec;
    leaders.P = outside->size();
    const int slow = spec.slow_host.rank;
    leaders.slow_host.rank = slow >= 0 && slow % method.group == 0 ? slow / method.group : -1;
    Method flat = method;
    flat.group = 1;
    row = simulate_row(*outside, leaders, problem.leaders.front(), preset, flat, clock);
  }
  // All ranks know how much comes back.
  double selected = row.selected;
  broadcast(comm, 0, std::as_writable_bytes(std::span(&selected, 1)));
  const double entries = selected + static_cast<double>(problem.k);
  const Cost back = is_dense ? node_share_values_cost(problem.n, group) : node_share_entries_cost(entries, group);
  const auto bytes = static_cast<std::size_t>(back.bytes / std::max(1, ceil_log2(group)));
  const TimedStep share =
      timed(back, [&](Communicator& inside) { broadcast(inside, 0, shared.first(std::min(bytes, shared.size()))); });
  row.P = spec.P;
  for (double* seconds : {&row.steady, &row.refresh, &row.mean}) *seconds += sum.seconds + share.seconds;
  return row;
}

}  // namespace oktopk
