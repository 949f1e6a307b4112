// SPDX-License-Identifier: Apache-2.0
#include "oktopk/laws/laws.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/laws/faults.h"
#include "oktopk/laws/honesty.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/truth.h"
#include "oktopk/laws/witness.h"

namespace oktopk {
namespace {

// ---- Laws 1 to 4: agreement, truth, mass, honesty.

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
    const std::string said = (f.holds ? '+' : '-') + f.detail;
    const Bytes heard = gather_bytes(comm, std::as_bytes(std::span(said)))[0];
    f.holds = heard.at(0) == std::byte{'+'};
    f.detail.assign(reinterpret_cast<const char*>(heard.data()) + 1, heard.size() - 1);
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

// ---- Law 3 over a restart: a run that is saved in its middle continues as if never stopped; on another number of
// ranks it still owes the weights the same values.

namespace {

// The values owed to the weights, (sum of residuals + owner memory) / P, and the same of magnitudes.
struct Owed {
  Dense mean;
  Dense size;
};

Owed owed_by(Synchroniser& sync) {
  const Subject subject(sync);
  const auto residual = subject.residual();
  Dense mine(residual.begin(), residual.end());
  Dense size(mine.size());
  std::transform(mine.begin(), mine.end(), size.begin(), [](double x) { return std::fabs(x); });
  const Subject::Memory memory = subject.memory();
  for (std::size_t i = 0; i < memory.values.size(); ++i) {
    if (memory.values[i] == 0) continue;
    mine[memory.index(i)] += double{memory.values[i]};
    size[memory.index(i)] += std::fabs(double{memory.values[i]});
  }
  Owed owed{add_up(gather_dense(sync.comm(), mine)), add_up(gather_dense(sync.comm(), size))};
  for (double& x : owed.mean) x /= sync.comm().size();
  return owed;
}

// Names the first index at which `is` differs from what was owed by more than rounding (P'/P is seldom a power of two);
// empty if there is none.
std::string differs(const Dense& is, const Owed& owed, const char* what) {
  for (std::size_t i = 0; i < is.size(); ++i)
    if (std::fabs(is[i] - owed.mean[i]) > 1e-6 * owed.size[i]) {
      std::ostringstream text;
      text << what << "[" << i << "] was " << owed.mean[i] << ", is " << is[i];
      return text.str();
    }
  return "";
}

// Restores the states of all ranks on the ranks of `fewer` and flushes them; says what is wrong then.
std::string restore_on(Communicator& fewer, const Trial& trial, const std::vector<Bytes>& states, const Owed& owed) {
  ReducerOptions options = trial.options;
  options.allreduce.skips = "halving";  // a list fits one P only
  const auto sync = make_synchroniser(fewer, trial.n, options, trial.group);
  sync->load_all(states);
  std::string wrong = differs(owed_by(*sync).mean, owed, "one rank less: owed");
  const Update rest = sync->flush();
  if (wrong.empty()) wrong = differs(Dense(rest.dense.begin(), rest.dense.end()), owed, "one rank less: applied");
  return wrong;
}

}  // namespace

Finding check_restore(Communicator& comm, const Trial& trial) {
  const int middle = trial.steps / 2;
  const auto whole = make_synchroniser(comm, trial.n, trial.options, trial.group);
  run_steps(*whole, trial, 0, middle);
  const Bytes state = whole->save();
  const Owed owed = owed_by(*whole);
  const auto resumed = make_synchroniser(comm, trial.n, trial.options, trial.group);
  resumed->load(state);
  std::string wrong;
  if (run_steps(*resumed, trial, middle, trial.steps) != run_steps(*whole, trial, middle, trial.steps) ||
      resumed->save() != whole->save())
    wrong = "the resumed run is another one";
  if (comm.size() > 1) {
    const auto states = gather_bytes(comm, state);
    const bool stays = comm.rank() + 1 < comm.size();
    const auto part = comm.split(stays ? 0 : 1, comm.rank());
    std::string of_fewer;
    if (stays) of_fewer = restore_on(*part, trial, states, owed);
    if (wrong.empty()) wrong = of_fewer;
  }
  const int r = first_that_denies(comm, wrong.empty());
  if (r < 0) return {"restore", true, ""};
  return {"restore", false, "rank " + std::to_string(r) + (wrong.empty() ? " differs" : ": " + wrong)};
}

// ---- Law 4 on streams with error feedback. Only counts are gathered, once, at the end, so a stream of a hundred steps
// costs little more than its steps.

namespace {

constexpr std::array<VolumeStream, 5> kStreams = {{
    {"gaussian", {.data = Input::gaussian}},
    {"shared", {.data = Input::gaussian, .shared = 0.3}},
    {"jump", {.data = Input::gaussian, .event = StreamEvent::jump}, 1.15},
    {"zero_first", {.data = Input::gaussian, .event = StreamEvent::zero_first}},
    {"layered", {.data = Input::layered}},
}};

// The counts of a rank in one step.
struct Counted {
  Traffic traffic;
  std::uint64_t refreshed = 0;
};

}  // namespace

std::span<const VolumeStream> volume_streams() { return kStreams; }

Finding check_volume(Communicator& comm, const VolumeTrial& trial) {
  CountingCommunicator counting(comm);
  const auto sync = make_synchroniser(counting, trial.stream.n, trial.options, trial.group);
  const Subject subject(*sync);
  GradientStream stream(trial.stream, comm.rank());
  std::vector<Counted> mine;
  for (int step = 0; step < trial.steps; ++step) {
    counting.reset();
    sync->step(stream.at(static_cast<std::uint64_t>(step)));
    mine.push_back({counting.traffic(), subject.outcome().refreshed});
  }
  std::vector<Counted> all(static_cast<std::size_t>(comm.size()) * mine.size());  // by rank, then by step
  Workspace work;
  allgather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work);
  VolumePromise promise = promise_of(subject, trial.options);
  promise.slack = trial.slack;
  Honesty honesty(promise, spread_of(trial.stream.data), Judged::stream);
  std::vector<Traffic> ranks(static_cast<std::size_t>(comm.size()));
  for (std::size_t step = 0; step < mine.size(); ++step) {
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = all[r * mine.size() + step].traffic;
    honesty.add(ranks, all[step].refreshed != 0);  // rank 0 leads its node
  }
  return honesty.finding("volume");
}

// ---- Laws 5 to 7: calm, courage, bad input.

namespace {

std::uint64_t run_trial(Communicator& comm, const Trial& trial) {
  const auto sync = make_synchroniser(comm, trial.n, trial.options, trial.group);
  return run_steps(*sync, trial, 0, trial.steps);
}

constexpr const char* kDenseTrusts =
    "without drop and corrupt: dense blocks carry no tag or checksum, their transport must be sound";

struct Ended {
  bool raised = false;  // CommError, or UsageError where a peer's lie was seen while comparing n and k
  std::uint64_t hash = 0;
  bool struck = false;  // on the rank with the fault: it took effect
};

Ended run_with_fault(Communicator& comm, const Trial& trial, bool faulty, const Fault& fault) {
  Ended end;
  std::optional<FaultyCommunicator> wrapped;
  if (faulty) wrapped.emplace(comm, fault);
  try {
    end.hash = run_trial(faulty ? static_cast<Communicator&>(*wrapped) : comm, trial);
  } catch (const CommError&) {
    end.raised = true;
  } catch (const UsageError&) {
    end.raised = true;
  }
  end.struck = faulty && wrapped->has_struck();
  return end;
}

// Whether `act` throws UsageError; any other error passes through.
template <class Act>
bool refuses(Act act) {
  try {
    act();
  } catch (const UsageError&) {
    return true;
  }
  return false;
}

}  // namespace

Finding check_calm(Communicator& comm, const Trial& trial) {
  const std::uint64_t quiet = run_trial(comm, trial);
  JitterCommunicator jitter(comm, trial.seed, std::chrono::microseconds(300));
  const int r = first_that_denies(comm, run_trial(jitter, trial) == quiet);
  if (r < 0) return {"calm", true, ""};
  return {"calm", false, "rank " + std::to_string(r) + " got another update under delays"};
}

Finding check_courage(Communicator& report, const std::function<std::unique_ptr<Communicator>()>& make_comm,
                      const Trial& trial) {
  Finding finding{"courage", true, ""};
  const int P = report.size();
  if (P == 1) return {"courage", true, "no peers"};
  const std::uint64_t sound = run_trial(report, trial);
  const bool dense = find_preset(trial.options.preset).residuals[0] == ResidualKind::none || trial.group != 1;
  for (const FaultKind kind :
       {FaultKind::die, FaultKind::drop, FaultKind::corrupt, FaultKind::truncate, FaultKind::stall}) {
    if (dense && (kind == FaultKind::corrupt || kind == FaultKind::drop)) {
      if (finding.holds) finding.detail = kDenseTrusts;
      continue;
    }
    for (const std::uint64_t message : {0U, 3U}) {
      const int culprit = static_cast<int>((trial.seed + message) % static_cast<std::uint64_t>(P));
      Ended end;
      {
        const auto comm = make_comm();
        end = run_with_fault(*comm, trial, report.rank() == culprit, {kind, message, trial.seed + message});
      }
      const bool struck = ask_all(report, end.struck ? 1 : 0)[static_cast<std::size_t>(culprit)] != 0;
      const bool good = struck ? end.raised : (!end.raised && end.hash == sound);
      const int r = first_that_denies(report, good);
      if (r < 0 || !finding.holds) continue;
      std::ostringstream text;
      text << to_string(kind) << " of rank " << culprit << " at its message " << message
           << (struck ? ": rank " : " (not reached): rank ") << r << (struck ? " saw no error" : " failed");
      finding = {"courage", false, text.str()};
    }
  }
  return finding;
}

Finding check_bad_input(Communicator& comm, const Trial& trial) {
  Finding finding{"bad input", true, ""};
  const auto expect = [&](bool mine, const char* what) {
    const bool is_denied = first_that_denies(comm, mine) >= 0;
    if (is_denied && finding.holds) finding = {"bad input", false, what};
  };
  const auto with = [&](auto change) {
    ReducerOptions options = trial.options;
    change(options);
    return refuses([&] { make_synchroniser(comm, trial.n, options, trial.group); });
  };
  expect(with([&](auto& o) { o.k = trial.n + std::size_t{1}; }), "k > n was accepted");
  if (trial.options.preset != "dense") expect(with([](auto& o) { o.k = 0, o.density = 0; }), "density 0 was accepted");
  expect(with([](auto& o) { o.preset = "nonsense"; }), "an unknown preset was accepted");

  const bool is_last = comm.rank() == comm.size() - 1;
  const auto sync = make_synchroniser(comm, trial.n, trial.options, trial.group);
  auto gradient = make_input(trial.input, trial.n, comm.rank(), 0, trial.seed);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto broken = gradient;
    if (is_last) broken[broken.size() / 2] = bad;
    expect(refuses([&] { sync->step(broken); }), "a rank's NaN or Inf was accepted");
  }
  if (is_last) gradient.push_back(0.0F);
  expect(refuses([&] { sync->step(gradient); }), "a gradient of the wrong length was accepted");
  if (is_last) gradient.pop_back();
  // The refused steps left no trace: the next one is as in a fresh run.
  const auto fresh = make_synchroniser(comm, trial.n, trial.options, trial.group);
  const std::uint64_t after = fold(0, sync->step(gradient));
  expect(after == fold(0, fresh->step(gradient)), "a refused gradient changed the state");

  if (comm.size() > 1) {
    const Index mine = trial.n + (is_last ? 1 : 0);
    // A Reducer compares with its first step, a NodeReducer as it is made.
    const auto refuses_step = [&](Index n, const ReducerOptions& options) {
      return refuses([&] { make_synchroniser(comm, n, options, trial.group)->step(std::vector<float>(n, 0.0F)); });
    };
    expect(refuses_step(mine, trial.options), "different n on the ranks was accepted");
    ReducerOptions other = trial.options;
    DenseSchedule& schedule = other.allreduce.dense;  // every preset uses it
    if (comm.rank() == 0)
      schedule = schedule == DenseSchedule::ring ? DenseSchedule::rabenseifner : DenseSchedule::ring;
    expect(refuses_step(trial.n, other), "different options on the ranks were accepted");
  }
  return finding;
}

}  // namespace oktopk
