// SPDX-License-Identifier: Apache-2.0
// Laws 1 to 4: agreement, truth, mass, honesty.
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/laws/honesty.h"
#include "oktopk/laws/laws.h"
#include "oktopk/laws/witness.h"

namespace oktopk {
namespace {

// Keeps the first violation.
void violate(Finding& finding, int step, const auto&... parts) {
  if (!finding.holds) return;
  finding.holds = false;
  std::ostringstream text;
  text << "step " << step << ": ";
  (text << ... << parts);
  finding.detail = text.str();
}

void check_agreement(const Witness& w, int step, Finding& finding) {
  for (std::size_t r = 1; r < w.updates.size(); ++r)
    if (w.updates[r] != w.updates[0]) violate(finding, step, "rank ", r, " differs from rank 0");
}

// Whether dyadic values stay dyadic on the wire: then no sum of this size needs rounding. bf16 rounds to a multiple of
// the same unit, and its rounding error is one, too; logarithmic levels are not.
bool is_exact(const Allreduce& allreduce) {
  const ValueCoding coding = allreduce.codec().value;
  return allreduce.is_dense() || coding == ValueCoding::fp32 || coding == ValueCoding::bf16;
}

// The oracle has sums; the update is their mean.
void check_mean(const Witness& w, int step, Finding& finding) {
  const auto P = static_cast<float>(w.updates.size());
  for (std::size_t i = 0; i < w.sum.size(); ++i)
    if (w.updates[0][i] != double{static_cast<float>(w.sum[i]) / P})
      violate(finding, step, "[", i, "] the mean is ", w.updates[0][i], " of ", w.sum[i]);
}

// lhs == rhs at every index; to rounding where lossy codecs make the arithmetic inexact.
void check_balance(const Dense& lhs, const Dense& rhs, const Dense& scale, bool exact, int step, Finding& finding) {
  for (std::size_t i = 0; i < lhs.size(); ++i) {
    const double defect = std::fabs(lhs[i] - rhs[i]);
    if (defect > (exact ? 0.0 : 1e-6 * scale[i])) violate(finding, step, "[", i, "] had ", lhs[i], ", has ", rhs[i]);
  }
}

Dense magnitudes(const Witness& w) {
  Dense scale(w.memory_before.size(), 0.0);
  for (const Dense& a : w.accumulators)
    for (std::size_t i = 0; i < scale.size(); ++i) scale[i] += std::fabs(a[i]);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] += std::fabs(w.memory_before[i]);
  return scale;
}

Dense all_of(const std::vector<Dense>& ranks, const Dense& extra) {
  std::vector<Dense> terms = ranks;
  terms.push_back(extra);
  return add_up(terms);
}

void check_mass(const Witness& w, bool exact, int step, Finding& finding) {
  std::vector<Dense> kept = w.residuals;
  kept.push_back(w.sum);
  check_balance(all_of(w.accumulators, w.memory_before), all_of(kept, w.memory_after), magnitudes(w), exact, step,
                finding);
}

// Rank 0's findings, on every rank.
void tell_all(Communicator& comm, std::vector<Finding>& findings) {
  for (Finding& f : findings) {
    std::array<std::byte, 512> text{};
    const std::string said = (f.holds ? '+' : '-') + f.detail;
    const std::size_t size = std::min(said.size(), text.size());
    std::ranges::copy(std::as_bytes(std::span(said)).first(size), text.begin());
    const std::size_t arrived = broadcast_up_to(comm, 0, text, size);
    const std::string heard(reinterpret_cast<const char*>(text.data()), arrived);
    f.holds = heard.at(0) == '+';
    f.detail = heard.substr(1);
  }
}

}  // namespace

// Only rank 0 judges: on a machine with few cores, a trial in which all ranks judge takes P times as long.
std::vector<Finding> check_steps(Communicator& comm, const Trial& trial) {
  Finding agreement{"agreement", true, ""};
  Finding truth{"truth", true, ""};
  Finding mass{"mass", true, ""};
  const bool judges = comm.rank() == 0;
  CountingCommunicator counting(comm);
  const auto sync = make_synchroniser(counting, trial.n, trial.options, trial.group);
  const Subject subject(*sync);
  const auto allreduce = make_allreduce(find_preset(trial.options.preset), trial.options.allreduce);
  const bool exact = is_exact(*allreduce);
  Truth oracle(*allreduce, trial.n, subject.k());
  Honesty honesty(promise_of(subject, trial.options), spread_of(trial.input), Judged::steps);
  Dense brought(trial.n, 0.0);
  Dense applied(trial.n, 0.0);
  Witness w;
  for (int step = 0; step < trial.steps; ++step) {
    const auto gradient = make_input(trial.input, trial.n, comm.rank(), static_cast<std::uint64_t>(step), trial.seed);
    w = witness_step(comm, counting, *sync, gradient, 0);
    const auto gradients = gather_dense(comm, Dense(gradient.begin(), gradient.end()), 0);
    if (!judges) continue;
    check_agreement(w, step, agreement);
    if (oracle.check(w.record, static_cast<std::uint64_t>(step)) > 0) violate(truth, step, oracle.detail());
    check_mean(w, step, truth);
    check_mass(w, exact, step, mass);
    honesty.add(w.traffic, w.record.refreshed);
    brought = all_of(gradients, brought);
    applied = add_up(std::vector<Dense>{applied, w.sum});
  }
  if (judges && trial.steps > 0)  // nothing was lost over all steps together
    check_balance(brought, all_of(w.residuals, all_of({applied}, w.memory_after)), magnitudes(w), exact, trial.steps,
                  mass);
  std::vector<Finding> findings = {agreement, truth, mass, honesty.finding("honesty")};
  tell_all(comm, findings);
  return findings;
}

}  // namespace oktopk
