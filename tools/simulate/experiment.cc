// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/experiment.h"

#include <algorithm>
#include <optional>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "tools/simulate/node_experiment.h"
#include "tools/simulate/problem.h"
#include "tools/simulate/resident.h"
#include "tools/simulate/settled_owners.h"
#include "tools/simulate/sized.h"
#include "tools/simulate/supports.h"
#include "tools/simulate/timed_step.h"

namespace oktopk {
namespace {

struct Measured : TimedStep {
  double selected = 0;
  bool refreshed = false;
};

// The row's ranks, clock and counters.
class Row {
 public:
  Row(Communicator& comm, const SimulationSpec& spec, const SimulatedProblem& problem, const Method& method,
      const SimulatedClock& clock)
      : comm_(comm),
        spec_(spec),
        problem_(problem),
        method_(method),
        clock_(clock),
        allreduce_(make_allreduce(find_preset(method.preset), spec.allreduce(method))),
        device_(make_cpu_device()),
        support_{.n = problem.n, .k = problem.k, .P = spec.P, .kind = find_support(spec.support), .seed = spec.seed} {}

  Measured step_with_data(std::uint64_t step, bool refresh = false);
  Measured step_with_sizes(const std::string& preset);
  // oktopk as after a first step, with the true threshold.
  void start_from_survey();
  // circulant after many steps; returns how many.
  std::uint64_t start_settled();
  void agree() { allreduce_->agree(comm_, problem_.n, problem_.k); }

 private:
  Measured measure(bool refresh, const std::function<void(Communicator&)>& body);
  void select(std::uint64_t step) { make_selection(support_, comm_.rank(), step, selection_); }

  Communicator& comm_;
  const SimulationSpec& spec_;
  const SimulatedProblem& problem_;
  const Method& method_;
  const SimulatedClock& clock_;
  std::unique_ptr<Allreduce> allreduce_;
  std::unique_ptr<Device> device_;
  SupportSpec support_;
  SparseVector selection_;
  std::vector<float> dense_;
  Outcome out_;
  Workspace work_;
};

Measured Row::measure(bool refresh, const std::function<void(Communicator&)>& body) {
  Problem problem = model_of(problem_, spec_.P);
  problem.refresh = refresh;
  const Profile kernels{.machine = spec_.kernel_prices()};
  const double price = seconds_per_byte(allreduce_->predict(problem).expected, kernels.machine_with(method_.codec));
  return {time_step(comm_, comm_, spec_, clock_, price, body, work_)};
}

Measured Row::step_with_data(std::uint64_t step, bool refresh) {
  select(step);
  if (allreduce_->is_dense()) {
    dense_.assign(problem_.n, 0.0F);
    device_->add_at(dense_, 0, selection_);
  }
  const Contribution mine{.selection = selection_, .dense = dense_};
  Measured measured = measure(
      refresh, [&](Communicator& comm) { allreduce_->run(comm, *device_, mine, problem_.n, problem_.k, out_); });
  measured.refreshed = out_.refreshed;
  measured.selected = static_cast<double>(allreduce_->is_dense() ? out_.dense_update.size() : out_.update.size());
  return measured;
}

Measured Row::step_with_sizes(const std::string& preset) {
  select(0);
  const bool voted = preset == "oktopk_refresh";
  const Cuts cuts = voted ? problem_.cuts : equal_cuts(problem_.n, spec_.P);
  const auto blocks = block_sizes(selection_, cuts);
  SizedAllreduce sized(preset, spec_.allreduce(method_),
                       {.n = problem_.n,
                        .k = problem_.k,
                        .P = spec_.P,
                        .cuts = cuts,
                        .region_unions = voted ? problem_.cut_unions : problem_.equal_unions,
                        .blocks = blocks});
  // One buffer for all ranks, by its address: its content means nothing.
  Bytes owned;
  std::uint64_t size = allreduce_small(comm_, std::uint64_t{sized.shared_bytes()}, Reduction::max, work_);
  if (comm_.rank() == 0) owned.resize(size);
  std::byte* address = owned.data();
  broadcast(comm_, 0, std::as_writable_bytes(std::span(&address, 1)));
  const Measured measured = measure(voted, [&](Communicator& comm) {
    sized.run(comm, {address, static_cast<std::size_t>(size)});
  });
  barrier(comm_);
  return measured;
}

void Row::start_from_survey() {
  StateWriter state;
  state.put(std::uint64_t{1});  // steps made; then as oktopk saves itself
  state.put_all(std::span<const Index>(problem_.cuts));
  SumThreshold threshold(allreduce_->options().thresholds, spec_.tau_prime);
  threshold.set(static_cast<float>(problem_.kth_magnitude), problem_.k, 0, problem_.k);
  threshold.save(state);
  const Bytes sealed = state.seal();
  StateReader reader(sealed);
  allreduce_->load(reader, problem_.n, comm_.rank(), spec_.P);
}

// Rank 0 finds the state out for all, which read it where it lies.
std::uint64_t Row::start_settled() {
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
    row.bytes += m.bytes;
    row.selected += m.selected;
  }
  for (double* sum : {&row.steady, &row.messages, &row.bytes, &row.selected}) *sum /= count;
}

}  // namespace

bool carries_data(const std::string& preset, const SimulationSpec& spec, const SimulatedProblem& problem) {
  for (const char* never : {"gtopk", "oktopk", "spardl", "circulant"})
    if (preset == never) return true;  // O(k) per rank
  const double each = resident_bytes(preset, problem.n, static_cast<double>(problem.k), spec.P);
  return each * spec.P <= spec.data_bytes;
}

bool starts_from_survey(const std::string& preset, const SimulationSpec& spec, const SimulatedProblem& problem) {
  return preset == "oktopk" && spec.gathers_unions() && !carries_data("oktopk_refresh", spec, problem);
}

double needed_bytes(const Method& method, const SimulationSpec& spec, const SimulatedProblem& problem) {
  const int P = (spec.P + method.group - 1) / method.group;
  const auto n = static_cast<double>(problem.n);
  const double bytes = P * resident_bytes(method.preset, n, static_cast<double>(problem.k), P);
  return method.preset == "circulant" ? bytes + settling_bytes(n) : bytes;
}

SimulatedRow simulate_row(Communicator& comm, const SimulationSpec& spec, const SimulatedProblem& problem,
                          const std::string& label, const Method& method, const SimulatedClock& clock) {
  if (method.group > 1) return simulate_nodes(comm, spec, problem, label, method, clock);
  const std::string& preset = method.preset;
  require(spec.steps >= 1, "simulate: ", spec.steps, " steps, but there must be at least 1");
  const bool gathers_unions = preset == "oktopk" && spec.gathers_unions();
  require(!gathers_unions || spec.warm_up + spec.steps < spec.tau_prime, "simulate: ", spec.warm_up, " + ", spec.steps,
          " steps, but by oktopk's thresholds ", to_string(spec.thresholds),
          " there must be fewer than tau' = ", spec.tau_prime);
  SimulatedRow row{
      .preset = label, .n = static_cast<double>(problem.n), .k = static_cast<double>(problem.k), .P = spec.P};
  Row runs(comm, spec, problem, method, clock);
  const bool surveyed = starts_from_survey(preset, spec, problem);
  row.carries_data = carries_data(preset, spec, problem);
  row.refresh_carries_data = row.carries_data && !surveyed;
  std::vector<Measured> steady;
  if (!row.carries_data) {
    steady = {runs.step_with_sizes(preset)};
    row.refresh = steady.front().seconds;
    add_steady(steady, row);
    return row;
  }
  if (surveyed) {
    row.refresh = runs.step_with_sizes("oktopk_refresh").seconds;
    runs.start_from_survey();
  }
  runs.agree();
  std::uint64_t step = 0;
  if (!surveyed) row.refresh = runs.step_with_data(step, true).seconds;
  const bool has_owners = preset == "circulant";
  if (has_owners) step = runs.start_settled() - 1;
  const int warm_up = has_owners || preset == "oktopk" ? spec.warm_up : 0;
  for (int i = 0; i < warm_up; ++i) runs.step_with_data(++step);
  for (int i = 0; i < spec.steps; ++i) steady.push_back(runs.step_with_data(++step));
  add_steady(steady, row);
  if (gathers_unions) row.mean += (row.refresh - row.mean) / spec.tau_prime;
  return row;
}

}  // namespace oktopk
