// SPDX-License-Identifier: Apache-2.0
// One row of `oktopk-lab simulate`, as the simulated ranks run it: a first step, which sets thresholds, and steady
// ones, of a preset's Allreduce on selections made for it (supports.h). Owner memory and thresholds stay from step to
// step: circulant's owners go from the first step to their stationary state without messages (settled_owners.h), and a
// few steps that are not measured let the thresholds of circulant and oktopk settle. With groups
// (reduce/node_reducer.h) the ranks of a node sum first, the leaders run the allreduce, and the nodes share the update;
// the three times add up. This file knows a communicator and a clock, not the simulator.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lab/simulate/settled_owners.h"
#include "lab/simulate/spec.h"
#include "lab/simulate/supports.h"
#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/dense_sum.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/decorators.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/cost.h"

namespace oktopk {
namespace {

constexpr double kPause = 60;      // seconds: longer than ranks take to agree on an instant, over any platform
constexpr double kInstant = 1e-8;  // two clocks that are closer than this are at the same instant

double seconds_per_byte(const Cost& cost, const Machine& kernels) {
  const double work = cost.entries * kernels.gamma + cost.values * kernels.delta;
  return cost.bytes > 0 ? work / cost.bytes : 0;
}

// Calls `charge` after every exchange that brought bytes from other ranks.
class ChargingCommunicator final : public TrackingCommunicator<std::span<const Recv>> {
 public:
  using Charge = std::function<void(const MessageCount& received)>;

  template <class Inner>
  ChargingCommunicator(Inner&& inner, Charge charge)
      : TrackingCommunicator(std::forward<Inner>(inner)), charge_(std::move(charge)) {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<ChargingCommunicator>(inner().split(color, key), charge_);
  }
  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const std::uint64_t ticket = inner().begin(sends, recvs);
    keep(ticket, recvs);
    return ticket;
  }
  void finish(std::uint64_t ticket) override {
    const std::span<const Recv> recvs = take(ticket);
    inner().finish(ticket);
    const MessageCount received = count_received(recvs, rank());
    if (received.bytes > 0) charge_(received);
  }

 private:
  Charge charge_;
};

// `seconds` are those of the slowest rank; `messages` and `bytes` are those of the busiest one, duplex (see Traffic).
// Bytes are those of the whole problem.
struct TimedStep {
  double seconds = 0;
  double messages = 0;
  double bytes = 0;
};

struct StepTimer {
  Communicator& all;
  const SimulationSpec& spec;
  const SimulatedClock& clock;
  double slowness;  // stretches this rank's processor time

  // Collective over `all`: the ranks begin at the same instant, and the last one ends it. `body` communicates with the
  // ranks of `part` through its argument. A byte costs what `cost`, priced by `kernels`, says of the entries and values
  // in it.
  template <class Body>
  TimedStep time(Communicator& part, const Cost& cost, const Machine& kernels, const Body& body) const;
};

template <class Body>
TimedStep StepTimer::time(Communicator& part, const Cost& cost, const Machine& kernels, const Body& body) const {
  const double per_byte = spec.scale * seconds_per_byte(cost, kernels);
  Workspace work;
  CountingCommunicator counting(part);
  ChargingCommunicator charging(counting, [&](const MessageCount& received) {
    clock.compute(slowness * (static_cast<double>(received.bytes) * per_byte +
                              static_cast<double>(received.messages) * spec.receive_overhead));
  });
  const double begin = kPause + allreduce_small(all, clock.now(), Reduction::max, work);
  clock.sleep_until(begin);
  require(clock.now() < begin + kInstant, "simulate: rank ", all.rank(), " began a step late");
  body(charging);
  double most[] = {clock.now(), static_cast<double>(counting.traffic().duplex_messages),
                   static_cast<double>(counting.traffic().duplex_bytes)};
  allreduce_small(all, std::span<double>(most), Reduction::max, work);
  return {.seconds = most[0] - begin, .messages = most[1], .bytes = spec.scale * most[2]};
}

struct Measured : TimedStep {
  double selected = 0;
  bool refreshed = false;
};

// The allreduce of a row, on the ranks of `comm`.
class Experiment {
 public:
  Experiment(Communicator& comm, const SimulationSpec& spec, StepTimer timer)
      : comm_(comm),
        spec_(spec),
        timer_(timer),
        allreduce_(make_allreduce(find_preset(spec.method.preset), spec.allreduce())),
        device_(make_cpu_device()),
        support_{.n = spec.scaled_n(),
                 .k = spec.scaled_k(),
                 .P = comm.size(),
                 .kind = find_support(spec.support),
                 .seed = spec.seed} {}

  SimulatedRow run();

 private:
  Measured make_step(std::uint64_t step, bool refresh = false);
  std::uint64_t settle();

  Communicator& comm_;
  const SimulationSpec& spec_;
  StepTimer timer_;
  std::unique_ptr<Allreduce> allreduce_;
  std::unique_ptr<Device> device_;
  SupportSpec support_;
  SparseVector selection_;
  std::vector<float> dense_;
  Outcome out_;
};

Measured Experiment::make_step(std::uint64_t step, bool refresh) {
  make_selection(support_, comm_.rank(), step, selection_);
  if (allreduce_->is_dense()) {
    dense_.assign(support_.n, 0.0F);
    device_->add_at(dense_, 0, selection_);
  }
  const Contribution mine{.selection = selection_, .dense = dense_};
  const Problem whole{.n = static_cast<double>(spec_.n),
                      .k = static_cast<double>(spec_.k),
                      .P = comm_.size(),
                      .union_exponent = spec_.union_exponent,
                      .refresh = refresh};
  const Profile kernels{.machine = spec_.kernel_prices()};
  Measured measured{
      timer_.time(comm_, allreduce_->predict(whole).expected, kernels.machine_with(spec_.method.codec),
                  [&](Communicator& comm) { allreduce_->run(comm, *device_, mine, support_.n, support_.k, out_); })};
  measured.refreshed = out_.refreshed;
  const std::size_t entries = allreduce_->is_dense() ? out_.dense_update.size() : out_.update.size();
  measured.selected = spec_.scale * static_cast<double>(entries);
  return measured;
}

// circulant as after many steps; returns how many. Rank 0 makes them for all, which read its result where it lies.
std::uint64_t Experiment::settle() {
  std::optional<SettledOwners> owned;
  if (comm_.rank() == 0) owned = settle_owners(support_);
  const SettledOwners* owners = owned ? &*owned : nullptr;
  broadcast(comm_, 0, std::as_writable_bytes(std::span(&owners, 1)));
  owners->load_into(*allreduce_, support_, comm_.rank());
  const std::uint64_t steps = owners->steps;
  barrier(comm_);
  return steps;
}

// Steps that refreshed on demand count for the mean, not for steady ones, unless all did.
void add_steady(const std::vector<Measured>& steps, SimulatedRow& row) {
  const auto is_refreshed = [](const Measured& m) { return m.refreshed; };
  const bool all = std::all_of(steps.begin(), steps.end(), is_refreshed);
  double count = 0;
  for (const Measured& m : steps) {
    row.mean += m.seconds / static_cast<double>(steps.size());
    if (m.refreshed && !all) continue;
    ++count;
    row.steady += m.seconds;
    row.messages += m.messages;
    row.wire_bytes += m.bytes;
    row.selected += m.selected;
  }
  for (double* sum : {&row.steady, &row.messages, &row.wire_bytes, &row.selected}) *sum /= count;
}

SimulatedRow Experiment::run() {
  const bool has_owners = spec_.method.preset == "circulant";
  const bool has_thresholds = has_owners || spec_.method.preset == "oktopk";
  allreduce_->agree(comm_, support_.n, support_.k);
  std::uint64_t step = 0;
  SimulatedRow row{.refresh = make_step(step, true).seconds};
  if (has_owners) step = settle() - 1;
  for (int i = 0; has_thresholds && i < spec_.warm_up; ++i) make_step(++step);
  std::vector<Measured> steady;
  for (int i = 0; i < spec_.steps; ++i) steady.push_back(make_step(++step));
  add_steady(steady, row);
  if (spec_.gathers_unions()) row.mean += (row.refresh - row.mean) / spec_.tau_prime;
  return row;
}

// As NodeReducer does it.
void sum_in_node(Communicator& node, std::span<float> values, bool by_tree) {
  Workspace work;
  if (by_tree) return tree_reduce(node, values, work);
  const Cuts regions = equal_cuts(static_cast<Index>(values.size()), node.size());
  const std::vector<std::size_t> cuts(regions.begin(), regions.end());
  dense_reduce_scatter(node, values, cuts, DenseRounds::halving, work);
  gather_regions(node, values, cuts, work);
}

SimulatedRow simulate_nodes(Communicator& comm, const SimulationSpec& spec, const SimulatedClock& clock,
                            double slowness) {
  const int group = std::min(spec.method.group, comm.size());
  const int leader = comm.rank() / group * group;
  const auto node = comm.split(leader, comm.rank());
  const auto outside = comm.split(leader == comm.rank() ? 0 : 1, comm.rank());
  const StepTimer timer{comm, spec, clock, slowness};
  const Machine kernels = spec.kernel_prices();
  std::vector<float> values(spec.scaled_n());
  const TimedStep sum = timer.time(*node, node_sum_cost(spec.n, group), kernels, [&](Communicator& inside) {
    sum_in_node(inside, values, node_sums_by_tree(spec.n, group));
  });
  SimulatedRow row;
  if (leader == comm.rank()) row = Experiment(*outside, spec, {*outside, spec, clock, slowness}).run();
  // All ranks know how much comes back: the update, and the entries that the leader sent.
  double selected = row.selected;
  broadcast(comm, 0, std::as_writable_bytes(std::span(&selected, 1)));
  const bool is_dense = find_preset(spec.method.preset).residuals.front() == ResidualKind::none;
  const Cost back = is_dense ? node_share_values_cost(spec.n, group)
                             : node_share_entries_cost(selected + static_cast<double>(spec.k), group);
  const auto bytes = static_cast<std::size_t>(back.bytes / std::max(1, ceil_log2(group)) / spec.scale);
  const auto shared = std::as_writable_bytes(std::span(values));
  const TimedStep share = timer.time(*node, back, kernels, [&](Communicator& inside) {
    broadcast(inside, 0, shared.first(std::min(bytes, shared.size())));
  });
  for (double* seconds : {&row.steady, &row.refresh, &row.mean}) *seconds += sum.seconds + share.seconds;
  return row;
}

}  // namespace

SimulatedRow simulate_row(Communicator& comm, const SimulationSpec& spec, const SimulatedClock& clock) {
  require(spec.steps >= 1, "simulate: ", spec.steps, " steps, but there must be at least 1");
  require(!spec.gathers_unions() || spec.warm_up + spec.steps < spec.tau_prime, "simulate: ", spec.warm_up, " + ",
          spec.steps, " steps, but by oktopk's thresholds ", to_string(spec.thresholds),
          " there must be fewer than tau' = ", spec.tau_prime);
  const double slowness = comm.rank() == spec.slow_rank ? spec.slow_factor : 1;
  if (spec.method.group > 1) return simulate_nodes(comm, spec, clock, slowness);
  return Experiment(comm, spec, {comm, spec, clock, slowness}).run();
}

}  // namespace oktopk
