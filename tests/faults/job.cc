// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/job.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "tests/faults/fault_communicator.h"
#include "tests/faults/network.h"
#include "tests/faults/scheduler.h"

namespace oktopk::faults {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);
constexpr int kMostAttempts = 5;

std::unique_ptr<Synchroniser> make_synchroniser(const Plan& plan, Communicator& comm) {
  if (plan.shape == Shape::nodes) return std::make_unique<NodeReducer>(comm, plan.n, plan.options, NodeOptions{2});
  if (plan.shape == Shape::plain || plan.n < 3) return std::make_unique<Reducer>(comm, plan.n, plan.options);
  const std::vector<std::uint64_t> tensors = {plan.n / 3, plan.n - plan.n / 3};
  ReducerOptions options = plan.options;
  options.k = std::max<std::size_t>(options.k, 2);
  return std::make_unique<BucketedReducer>(comm, tensors, options, FusionOptions{.policy = FusionPolicy::tensor});
}

// True when the text accuses a rank ("lost rank 3", "no answer within 60 s from rank 3, 4") that had no fault.
bool accuses_innocent(const std::string& text, const std::set<int>& faulty) {
  for (const std::string key : {"lost rank ", " s from rank "}) {
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
      const char* digits = text.c_str() + at + key.size();
      for (char* end = nullptr;; digits = end + 2) {
        if (!faulty.contains(static_cast<int>(std::strtol(digits, &end, 10)))) return true;
        if (std::string_view(end).substr(0, 2) != ", ") break;
      }
    }
  }
  return false;
}

using Failure = std::function<void(std::string)>;

// The results of all ranks of a job, outside of the simulated network: updates by step, states by step and rank. It
// checks agreement when a rank posts a step, and mass at the end.
class Board {
 public:
  Board(const Plan& plan, Failure failure) : plan_(plan), failure_(std::move(failure)) {}

  // Step number plan.steps is the flush.
  void post(int rank, std::uint64_t step, const Update& update) {
    std::vector<float> mean(plan_.n, 0.0F);
    update.for_each([&](Index i, float value) { mean[i] = value; });
    const auto [at, is_new] = updates_.try_emplace(step, mean);
    for (Index i = 0; i < plan_.n && !is_new; ++i) {
      if (std::bit_cast<std::uint32_t>(mean[i]) == std::bit_cast<std::uint32_t>(at->second[i])) continue;
      return failure_(text_of("agreement: step ", step, ", index ", i, ": rank ", rank, " has ", mean[i],
                              ", before it was ", at->second[i]));
    }
  }

  void save(int rank, std::uint64_t step, Bytes state) {
    auto& states = states_[step];
    states.resize(static_cast<std::size_t>(plan_.P));
    states[static_cast<std::size_t>(rank)] = std::move(state);
  }
  // The newest step that all ranks saved; 0: none.
  std::uint64_t saved_step() const {
    std::uint64_t newest = 0;
    for (const auto& [step, states] : states_) {
      bool is_complete = true;
      for (const Bytes& state : states) is_complete = is_complete && !state.empty();
      if (is_complete) newest = step;
    }
    return newest;
  }
  const Bytes& state(std::uint64_t step, int rank) const { return states_.at(step)[static_cast<std::size_t>(rank)]; }

  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (const auto& [step, mean] : updates_) hash = hash_bytes(std::as_bytes(std::span(mean)), hash + step);
    return hash;
  }

  // Inputs are multiples of 2^-10, and so are the sums; a mean's rounding error is far below that, times P.
  void check_mass() const {
    const auto units = [](double value) { return std::llround(value * 1024); };
    std::vector<long long> given(plan_.n), applied(plan_.n);
    for (std::uint64_t step = 0; step < plan_.steps; ++step)
      for (int rank = 0; rank < plan_.P; ++rank) {
        const std::vector<float> gradient = make_input(plan_.input, plan_.n, rank, step, plan_.seed);
        for (Index i = 0; i < plan_.n; ++i) given[i] += units(gradient[i]);
      }
    std::vector<double> sum(plan_.n);
    for (const auto& [step, mean] : updates_)
      for (Index i = 0; i < plan_.n; ++i) {
        applied[i] += units(static_cast<double>(mean[i]) * plan_.P);
        sum[i] += static_cast<double>(mean[i]) * plan_.P;
      }
    for (Index i = 0; i < plan_.n; ++i) {
      const double off = plan_.is_exact() ? static_cast<double>(given[i] != applied[i])
                                          : std::abs(sum[i] - static_cast<double>(given[i]) / 1024);
      if (off > (plan_.is_exact() ? 0 : 1e-3))
        return failure_(
            text_of("mass: index ", i, ": given ", static_cast<double>(given[i]) / 1024, ", applied ", sum[i]));
    }
  }

 private:
  const Plan& plan_;
  Failure failure_;
  std::map<std::uint64_t, std::vector<float>> updates_;
  std::map<std::uint64_t, std::vector<Bytes>> states_;
};

class Job {
 public:
  Job(const Plan& plan, const Wrap& wrap)
      : plan_(plan),
        wrap_(wrap),
        scheduler_(plan.seed),
        network_(scheduler_, plan.weather),
        board_(plan, [this](std::string text) { scheduler_.failure(std::move(text)); }) {}

  JobResult run() {
    launcher_ = scheduler_.add("launcher", [this] { launch(); });
    scheduler_.run();
    result_.failures = scheduler_.failures();
    result_.report = scheduler_.report();
    result_.history = scheduler_.history();
    result_.updates = board_.hash();
    result_.struck = network_.struck();
    result_.refused = network_.refused();
    return result_;
  }

 private:
  struct Ending {
    bool is_over = false, is_good = false;
    std::string error;
  };
  // The ranks of one attempt; zombies refer to it after its end.
  struct Attempt {
    int number = 0;
    std::uint64_t first_step = 0;
    World* world = nullptr;
    std::vector<int> actors;
    std::vector<Ending> endings;
  };

  void launch() {
    for (int number = 0; number < kMostAttempts; ++number) {
      ++result_.attempts;
      Attempt& attempt = start(number);
      // Whoever is paused when all others have ended counts as lost; the next attempt does not wait for it.
      const auto is_over = [&] {
        return std::ranges::all_of(attempt.actors,
                                   [&](int a) { return scheduler_.is_done(a) || is_stuck(attempt, a); });
      };
      scheduler_.wait(launcher_, std::chrono::hours(24), is_over, "the ranks");
      if (ended_well(attempt)) return board_.check_mass();
    }
    scheduler_.failure("the attempts without faults failed, too");
  }

  // A paused rank, where somebody else has failed already.
  bool is_stuck(const Attempt& attempt, int actor) const {
    if (!scheduler_.is_paused(actor)) return false;
    return std::ranges::any_of(attempt.endings, [](const Ending& e) { return e.is_over && !e.is_good; });
  }

  Attempt& start(int number) {
    attempts_.push_back(std::make_unique<Attempt>());
    Attempt& attempt = *attempts_.back();
    attempt.number = number;
    attempt.first_step = board_.saved_step();
    attempt.endings.resize(static_cast<std::size_t>(plan_.P));
    for (int rank = 0; rank < plan_.P; ++rank)
      attempt.actors.push_back(
          scheduler_.add(text_of("attempt ", number, " rank ", rank), [this, &attempt, rank] { live(attempt, rank); }));
    attempt.world = &network_.open(attempt.actors, kTimeout);
    for (const Fault& fault : draw_faults(plan_, number)) {
      network_.arm(attempt.actors[static_cast<std::size_t>(fault.rank)], fault);
      result_.faults.push_back(text_of("attempt ", number, ": ", describe(fault)));
    }
    return attempt;
  }

  void live(Attempt& attempt, int rank) {
    Ending& ending = attempt.endings[static_cast<std::size_t>(rank)];
    const int actor = attempt.actors[static_cast<std::size_t>(rank)];
    try {
      train(attempt, rank);
      ending.is_good = true;
    } catch (const CommError& error) {
      ending.error = error.what();
    } catch (const std::exception& error) {
      scheduler_.failure(text_of("rank ", rank, ": an error that is no CommError: ", error.what()));
    }
    ending.is_over = true;
    // Whoever was killed must not come here. Its last message may have been sent before, though.
    if (scheduler_.is_killed(actor) && !ending.is_good) scheduler_.failure("the death of a rank became an error");
    judge(attempt, rank, ending);
  }

  void judge(const Attempt& attempt, int rank, const Ending& ending) {
    if (ending.is_good) return;
    scheduler_.note(text_of("attempt ", attempt.number, " rank ", rank, " ends: ", ending.error));
    if (&attempt != attempts_.back().get()) return;  // a zombie
    if (network_.faulty().empty())
      scheduler_.failure(text_of("rank ", rank, " failed without any fault: ", ending.error));
    else if (accuses_innocent(ending.error, network_.faulty()))
      scheduler_.failure(text_of("rank ", rank, " accuses a rank that had no fault: ", ending.error));
  }

  void train(const Attempt& attempt, int rank) {
    std::unique_ptr<Communicator> comm =
        std::make_unique<FaultCommunicator>(network_, *attempt.world, rank, plan_.weather.stall);
    if (wrap_) comm = wrap_(std::move(comm));
    const auto synchroniser = make_synchroniser(plan_, *comm);
    std::uint64_t step = attempt.first_step;
    if (step > 0) synchroniser->load(Bytes(board_.state(step, rank)));
    while (step < plan_.steps) {
      const std::vector<float> gradient = make_input(plan_.input, plan_.n, rank, step, plan_.seed);
      board_.post(rank, step, synchroniser->step(gradient));
      if (++step % plan_.save_interval == 0) board_.save(rank, step, synchroniser->save());
    }
    network_.disarm_flips(attempt.actors[static_cast<std::size_t>(rank)]);
    board_.post(rank, step, synchroniser->flush());
  }

  static bool ended_well(const Attempt& attempt) {
    return std::ranges::all_of(attempt.endings, [](const Ending& ending) { return ending.is_good; });
  }

  const Plan& plan_;
  const Wrap& wrap_;
  Scheduler scheduler_;
  Network network_;
  Board board_;
  JobResult result_;
  int launcher_ = 0;
  std::vector<std::unique_ptr<Attempt>> attempts_;
};

}  // namespace

JobResult run_job(const Plan& plan, const Wrap& wrap) { return Job(plan, wrap).run(); }

}  // namespace oktopk::faults
