// SPDX-License-Identifier: Apache-2.0
// Laws 5 to 7: calm, courage, bad input.
#include <array>
#include <limits>
#include <optional>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/laws/laws.h"
#include "oktopk/laws/subject.h"
#include "oktopk/laws/witness.h"
#include "oktopk/laws/faults.h"

namespace oktopk {
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
