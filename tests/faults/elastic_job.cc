// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/transport_support.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "oktopk/laws/inputs.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/faults/arbiter_host.h"
#include "tests/faults/fault_communicator.h"
#include "tests/faults/job.h"

namespace oktopk::faults {
namespace {

constexpr int kJoiners = 2;
// Longer than the arbiter's grace and all faults of it.
constexpr Duration kPatience = std::chrono::minutes(30);

// A member of a simulated elastic job: an ElasticWorld over a FaultLink and the simulated network. A member may die
// after it asked and still be in the next epoch, and one that was paused may come when the others have gone on.
class FaultMember final : public ElasticWorld {
 public:
  // By its actor: waits until it is in an epoch. CommError when the others do not let it in for half an hour. `least`:
  // members of a first epoch.
  FaultMember(ArbiterHost& host, int actor, double stall, int least);
  ~FaultMember() override;

  Communicator& comm() override { return *comm_; }
  const Membership& membership() const override { return link_->side().word().last; }
  const Membership& regroup(std::uint64_t committed) override;
  bool has_joiners() override { return link_->side().has_joiners(host_.now()); }
  void leave() override { link_->leave(); }
  MemberId id() const { return link_->side().word().id; }
  // It lives, and nothing has happened to it that others might take for a death.
  bool is_sound() { return host_.is_sound(*link_); }

 private:
  void await_epoch(std::uint64_t committed);

  ArbiterHost& host_;
  const int actor_;
  const double stall_;
  const std::shared_ptr<FaultLink> link_;
  std::unique_ptr<Communicator> comm_;
};

FaultMember::FaultMember(ArbiterHost& host, int actor, double stall, int least)
    : host_(host),
      actor_(actor),
      stall_(stall),
      link_(std::make_shared<FaultLink>(host, actor, static_cast<std::uint64_t>(least))) {
  link_->when_given_up([this] {
    if (comm_ != nullptr) comm_->kill();
  });
  try {
    await_epoch(0);
  } catch (...) {
    link_->die(false);
    throw;
  }
}

FaultMember::~FaultMember() {
  link_->when_given_up({});
  // A process that was killed says nothing; its system may tell that it is gone.
  if (host_.scheduler().is_killed(actor_))
    link_->die(host_.scheduler().random().below(2) == 0);
  else
    link_->leave();
}

const Membership& FaultMember::regroup(std::uint64_t committed) {
  comm_->kill();  // whoever still waits in this epoch learns that it is over
  await_epoch(committed);
  return membership();
}

void FaultMember::await_epoch(std::uint64_t committed) {
  Scheduler& scheduler = host_.scheduler();
  const Duration begun = scheduler.now();
  const bool is_member = id() != 0;
  link_->want_epoch(committed);
  const auto has_come = [&] { return !link_->side().waits(); };
  const bool in_time = scheduler.wait(actor_, kPatience, has_come, "the arbiter");
  if (is_member && is_sound() && scheduler.now() - begun > host_.longest_answer())
    scheduler.failure(text_of("member ", id(), " waited ", in_seconds(scheduler.now() - begun), " s for the arbiter"));
  if (!in_time) fail<CommError>("actor ", actor_, ": ", link_->side().why_it_waits());
  if (!link_->side().refusal().empty()) fail<CommError>("member ", id(), ": ", link_->side().refusal());
  const Membership& mine = membership();
  const auto rank = static_cast<int>(std::ranges::find(mine.ids, id()) - mine.ids.begin());
  comm_ = std::make_unique<FaultCommunicator>(host_.network(), host_.world_of(mine), rank, stall_);
}

// Holds everything that was committed, outside of the simulated network.
class Ledger {
 public:
  using Failure = std::function<void(std::string)>;
  Ledger(const Plan& plan, Failure failure) : plan_(plan), failure_(std::move(failure)) {}

  void see(const Membership& membership) {
    const auto [at, is_new] = epochs_.try_emplace(membership.epoch, membership);
    if (!is_new && (at->second.ids != membership.ids || at->second.committed != membership.committed))
      failure_(text_of("epoch ", membership.epoch, " has two memberships"));
  }

  void commit(MemberId id, std::uint64_t epoch, std::uint64_t step, const Update& update) {
    std::vector<float> mean(plan_.n, 0.0F);
    update.for_each([&](Index i, float value) { mean[i] = value; });
    Commit& commit = commits_[step][epoch];
    if (commit.members.empty()) commit.mean = mean;
    if (std::memcmp(commit.mean.data(), mean.data(), mean.size() * sizeof(float)) != 0)
      failure_(text_of("agreement: step ", step, ": member ", id, " has another update"));
    commit.members.insert(id);
  }
  // After a step that the member committed.
  void keep_unsent(MemberId id, std::uint64_t step, const ElasticReducer& reducer) {
    Mass& mass =
        unsent_[id][step] = {Units(plan_.n, 0), Units(plan_.n, 0), received_of(reducer), inherited_of(reducer)};
    const Unsent& unsent = state_of(reducer.reducer()).unsent;
    add(mass.residual, unsent.values(), 1);
    const OwnerMemory memory = unsent.memory();
    for (std::size_t place = 0; place < memory.values.size(); ++place)
      if (memory.values[place] != 0) mass.memory[memory.index(place)] += in_units(memory.values[place]);
  }
  // The member dies inside of the step, or was given up. The others may commit the step if it has voted: this is then
  // what it had unsent.
  void keep_last(MemberId id, std::uint64_t step, ElasticReducer& reducer) {
    Reducer& inner = reducer_of(reducer);
    if (inner.is_open()) try {
        inner.commit();
      } catch (const UsageError&) {
        return;  // the exchange was not complete, so it has not voted
      }
    else if (reducer.committed() == step)
      return;  // it has rolled back, or not begun
    keep_unsent(id, step, reducer);
  }
  void report(MemberId id, const MembershipChange& change) {
    const auto [at, is_new] = reports_.try_emplace(change.epoch, change);
    if (!is_new && at->second != change)
      failure_(text_of("reports: member ", id, " reports another change to epoch ", change.epoch));
  }

  // A member may commit a step and die before it can tell; the others then make the step again in a later epoch, to
  // which that member must not belong.
  void check_repeated() const {
    for (const auto& [step, by_epoch] : commits_)
      for (const auto& [epoch, commit] : by_epoch)
        for (const MemberId id : commit.members)
          if (epoch != by_epoch.rbegin()->first && std::ranges::count(epochs_.at(by_epoch.rbegin()->first).ids, id) > 0)
            failure_(text_of("agreement: member ", id, " has made step ", step, " in epoch ", epoch,
                             " and its peers later"));
  }

  // A step counts as its last epoch made it. False where a member has voted for such a step and has rolled it back
  // since: all who had committed it died, and so did this one before the step was made again.
  bool check_mass() const {
    Units left(plan_.n, 0);
    std::map<MemberId, const Mass*> last;  // after the last step that has a gradient of the member
    for (const auto& [step, by_epoch] : commits_) {
      const auto& [epoch, commit] = *by_epoch.rbegin();
      const std::vector<MemberId>& ids = epochs_.at(epoch).ids;
      for (const MemberId id : ids) {
        add(left, make_input(plan_.input, plan_.n, static_cast<int>(id), step, plan_.seed), 1);
        const auto known = unsent_.find(id);
        const bool is_known = known != unsent_.end() && known->second.contains(step);
        last[id] = is_known ? &known->second.at(step) : nullptr;
      }
      add(left, commit.mean, -static_cast<double>(ids.size()));
    }
    if (std::ranges::any_of(last, [](const auto& member) { return member.second == nullptr; })) return false;
    for (const auto& [id, mass] : last) subtract_kept_or_lost(left, id, last);
    const auto wrong = std::ranges::find_if(left, [](long long units) { return units != 0; });
    if (wrong != left.end())
      failure_(text_of("mass: index ", wrong - left.begin(), ": ", static_cast<double>(*wrong) / 1024, " is missing"));
    return true;
  }

 private:
  using Units = std::vector<long long>;  // multiples of 2^-10
  struct Mass {
    Units residual, memory;
    std::vector<MemberId> received;  // the residual has what these had unsent
    MemberId inherited = 0;          // the residual has this member's memory, which no report says yet
  };

  static long long in_units(double value) { return std::llround(value * 1024); }
  static void add(Units& to, std::span<const float> values, double factor) {
    for (std::size_t i = 0; i < values.size(); ++i) to[i] += in_units(static_cast<double>(values[i]) * factor);
  }
  static void add(Units& to, const Units& values, long long factor) {
    for (std::size_t i = 0; i < values.size(); ++i) to[i] += values[i] * factor;
  }

  // A member has its mass, or has lost it by the reports. Members that left gave it away; where that is not reported,
  // it counts as theirs and not as the receiver's.
  void subtract_kept_or_lost(Units& left, MemberId id, const std::map<MemberId, const Mass*>& last) const {
    const Mass& mass = *last.at(id);
    for (const MemberId giver : mass.received) {
      add(left, last.at(giver)->residual, 1);
      add(left, last.at(giver)->memory, 1);
    }
    const auto inherits = [&](const auto& other) { return other.second->inherited == id; };
    bool keeps_memory = std::ranges::none_of(last, inherits);
    for (const auto& [epoch, change] : reports_) {
      if (std::ranges::find(change.left, id) != change.left.end()) return;
      for (const MemberLoss& loss : change.losses)
        if (loss.id == id) keeps_memory = loss.memory != MemoryFate::recovered;
    }
    add(left, mass.residual, -1);
    if (keeps_memory) add(left, mass.memory, -1);
  }

  const Plan& plan_;
  Failure failure_;
  struct Commit {
    std::vector<float> mean;
    std::set<MemberId> members;  // that committed it
  };
  std::map<std::uint64_t, Membership> epochs_;
  std::map<std::uint64_t, std::map<std::uint64_t, Commit>> commits_;  // by step and epoch
  std::map<MemberId, std::map<std::uint64_t, Mass>> unsent_;          // after each step of the member
  std::map<std::uint64_t, MembershipChange> reports_;                 // by epoch
};

class ElasticJob {
 public:
  explicit ElasticJob(const Plan& plan) : plan_(plan), scheduler_(plan.seed) {
    for (int r = 0; r < plan.P; ++r) scheduler_.add(text_of("actor ", r), [this, r] { live(r, plan_.P); });
    for (const ArbiterFault& fault : faults_) result_.faults.push_back(describe(fault));
    for (const Fault& fault : draw_faults(plan, 0)) {
      network_.arm(fault.rank, fault);
      result_.faults.push_back(describe(fault));
    }
    for (int j = 0; j < kJoiners; ++j) add_joiner(plan.P + j);
  }

  JobResult run() {
    scheduler_.run();
    check_ledgers();
    result_.failures = scheduler_.failures();
    result_.report = scheduler_.report();
    result_.history = scheduler_.history();
    result_.struck = network_.struck();
    result_.arbiter_struck = arbiter_.struck();
    result_.refused = network_.refused();
    result_.attempts = static_cast<int>(arbiter_.epochs().size());
    return result_;
  }

 private:
  // Whoever joins when all others have left starts a run of its own.
  Ledger& ledger_of(const FaultMember& member) {
    const auto failure = [this](std::string text) { scheduler_.failure(std::move(text)); };
    return ledgers_.try_emplace(member.membership().run, plan_, failure).first->second;
  }

  void check_ledgers() {
    for (auto& [run, ledger] : ledgers_) ledger.check_repeated();
    if (!plan_.is_exact() || !scheduler_.failures().empty()) return;
    result_.mass = MassCheck::made;
    for (auto& [run, ledger] : ledgers_)
      if (!ledger.check_mass()) result_.mass = MassCheck::left_out;
  }

  void add_joiner(int actor) {
    scheduler_.add(text_of("joiner ", actor), [this, actor] {
      scheduler_.sleep(actor, Duration(scheduler_.random().below(50'000'000)));
      live(actor, actor % 2 == 0 ? plan_.P : 1);
    });
  }

  void live(int actor, int least) {
    try {
      FaultMember member(arbiter_, actor, plan_.weather.stall, least);
      train(member);
    } catch (const CommError& error) {
      scheduler_.note(text_of("actor ", actor, " ends: ", error.what()));
    }
    if (scheduler_.is_killed(actor)) scheduler_.failure("the death of a member became an error");
  }

  void train(FaultMember& member) {
    std::uint64_t shared = 0;  // steps, in the caller's state
    std::uint64_t epoch = 0;   // of the next step
    ElasticHooks hooks;
    hooks.save_shared = [&] {
      Bytes bytes(sizeof(shared));
      std::memcpy(bytes.data(), &shared, sizeof(shared));
      return bytes;
    };
    hooks.load_shared = [&](std::span<const std::byte> bytes) { std::memcpy(&shared, bytes.data(), sizeof(shared)); };
    hooks.on_change = [&](const MembershipChange& change) {
      epoch = change.epoch;
      ledger_of(member).see(member.membership());
      ledger_of(member).report(member.id(), change);
    };
    ledger_of(member).see(member.membership());
    ElasticReducer reducer(member, plan_.n, plan_.options, hooks,
                           {.measure_every = 1 + static_cast<int>(plan_.seed % 3)});
    ledger_of(member).see(member.membership());
    epoch = member.membership().epoch;
    while (!reducer.has_left()) {
      if (shared != reducer.committed())
        scheduler_.failure(
            text_of("member ", member.id(), ": shared state of ", shared, " steps, not ", reducer.committed()));
      shared = make_step(reducer, member, epoch);
    }
  }

  std::uint64_t make_step(ElasticReducer& reducer, const FaultMember& member, const std::uint64_t& epoch) {
    const MemberId id = member.id();
    const std::uint64_t step = reducer.committed();
    if (step + 1 == plan_.steps || step == last_step_of(plan_, id)) reducer.leave_after_next();
    auto gradient = make_input(plan_.input, plan_.n, static_cast<int>(id), step, plan_.seed);
    if (is_unfit(id, step) && !refused_.contains({id, step})) gradient[0] = std::numeric_limits<float>::quiet_NaN();
    Update update;
    try {
      update = reducer.step(gradient);
    } catch (const UsageError&) {
      if (!refused_.emplace(id, step).second) throw;
      ++result_.refusals;
      return step;  // all make the step again, with another gradient
    } catch (...) {
      ledger_of(member).keep_last(id, step, reducer);
      throw;
    }
    if (reducer.committed() != step + 1) scheduler_.failure(text_of("member ", id, ": step ", step, " did not count"));
    ledger_of(member).commit(id, epoch, step, update);
    ledger_of(member).keep_unsent(id, step, reducer);
    return step + 1;
  }

  // The gradient that a member has first, in one step of some jobs.
  bool is_unfit(MemberId id, std::uint64_t step) const {
    Random random(plan_.seed, 5);
    return plan_.options.nan_policy == NanPolicy::error && random.below(2) == 0 && step == random.below(plan_.steps) &&
           id == 1 + random.below(static_cast<std::uint64_t>(plan_.P));
  }

  const Plan& plan_;
  Scheduler scheduler_;
  Network network_{scheduler_, plan_.weather};
  const std::vector<ArbiterFault> faults_ = draw_arbiter_faults(plan_);
  ArbiterHost arbiter_{network_, faults_};
  std::map<std::uint64_t, Ledger> ledgers_;               // by run
  std::set<std::pair<MemberId, std::uint64_t>> refused_;  // steps of members
  JobResult result_;
};

}  // namespace

JobResult run_elastic_job(const Plan& plan) { return ElasticJob(plan).run(); }

}  // namespace oktopk::faults
