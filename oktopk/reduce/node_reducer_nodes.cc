// SPDX-License-Identifier: Apache-2.0
// Who is in which node, and which preset the leaders use (node_reducer.h): found once, when a
// NodeReducer is made. Collective.
#include <algorithm>
#include <array>

#include "oktopk/base/error.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/sparse/cuts.h"

namespace oktopk {

// Preset auto: once, for the leaders. All ranks measure, so that all know the choice.
void NodeReducer::choose(int group) {
  const Problem problem{
      .n = static_cast<double>(n_), .k = static_cast<double>(k_), .P = static_cast<int>(leaders_.size())};
  ChoiceOptions choice = options_.choice;
  choice.allreduce = options_.allreduce;
  choice.groups = false;
  Profile profile = options_.profile ? *options_.profile
                                     : calibrate(comm_, {.ranks_per_host = std::max(1, group), .cpu = options_.cpu});
  profile.machine = profile.leaders.value_or(profile.machine);
  const Method method = rank_candidates(problem, profile, choice).front().method;
  const Preset& preset = find_preset(method.preset);
  options_.preset = method.preset;
  options_.allreduce = method.options(fitting(preset, options_.allreduce));
}

// `comm`: the parts of the traced one would call their ranks by other numbers.
void NodeReducer::find_nodes(Communicator& comm, int group) {
  const std::array<std::uint64_t, 2> mine = {n_, fingerprint_};
  std::vector<std::array<std::uint64_t, 2>> all(static_cast<std::size_t>(comm_.size()));
  allgather_checked(comm_, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work_);
  for (std::size_t r = 1; r < all.size(); ++r) {
    require(all[r][0] == all[0][0], "node reducer: rank ", r, " has n = ", all[r][0], ", rank 0 has n = ", all[0][0]);
    require(all[r][1] == all[0][1], "node reducer: rank ", r,
            " has another preset, other options or another group than rank 0");
  }
  const int leader = group == 0 ? comm_.host() : comm_.rank() / group * group;
  leader_of_.resize(static_cast<std::size_t>(comm_.size()));
  allgather_checked(comm_, std::as_bytes(std::span(&leader, 1)), std::as_writable_bytes(std::span(leader_of_)), work_);
  for (int r = 0; r < comm_.size(); ++r)
    if (leader_of_[static_cast<std::size_t>(r)] == r) leaders_.push_back(r);
  for (const int r : leaders_)
    largest_ = std::max(largest_, static_cast<int>(std::count(leader_of_.begin(), leader_of_.end(), r)));
  node_ = comm.split(leader, comm.rank());
  outside_ = comm.split(leader == comm.rank() ? 0 : 1, comm.rank());
  if ((node_->rank() == 0) != (leader == comm_.rank()))
    fail_world(comm_, "rank ", leader, " should lead this node, but is not its first");
  const Cuts regions = equal_cuts(n_, node_->size());
  cuts_.assign(regions.begin(), regions.end());
}

// Peers are called by their ranks among all.
void NodeReducer::trace_nodes() {
  const int leader = leader_of_[static_cast<std::size_t>(comm_.rank())];
  std::vector<int> inside;
  std::vector<int> others;
  for (int r = 0; r < comm_.size(); ++r) {
    const int its_leader = leader_of_[static_cast<std::size_t>(r)];
    if (its_leader == leader) inside.push_back(r);
    if (its_leader != r) others.push_back(r);
  }
  node_ = std::make_unique<TracingCommunicator>(std::move(node_), options_.trace, inside, "inside");
  outside_ = std::make_unique<TracingCommunicator>(std::move(outside_), options_.trace,
                                                   leader == comm_.rank() ? leaders_ : others);
}

}  // namespace oktopk
