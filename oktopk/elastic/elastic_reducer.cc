// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/elastic_reducer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/elastic/change.h"
#include "oktopk/elastic/mirror.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {
namespace {

constexpr std::uint64_t kOneLeaves = std::uint64_t{1} << 32U;  // in the sum of the votes; below it: who sees joiners

const ReducerOptions& checked(const ReducerOptions& options, const ElasticOptions& elastic) {
  require(!options.exchange, "elastic reducer: options.exchange is for ranks that stay the same");
  require(options.preset != "auto" || options.profile,
          "elastic reducer: preset auto without a profile, but members that join later could not help to measure one");
  require(elastic.measure_every >= 0, "elastic reducer: measure_every = ", elastic.measure_every,
          ", but it must be at least 0");
  return options;
}

std::pair<double, double> norm_and_sum(const Device& device, std::span<const float> x) {
  const Moments m = device.moments(x);
  const auto count = static_cast<double>(x.size());
  return {std::sqrt(count * (m.standard_deviation * m.standard_deviation + m.mean * m.mean)), count * m.mean};
}

// Says whether members wait to join or leave.
Cost agreement_cost(int P) {
  const double rounds = ceil_log2(P);
  return sequential(rounds, rounds * (sizeof(std::uint64_t) + kCheckBytes));
}

Cost measures_cost(int P) {
  return sequential(ceil_log2(P), (P - 1) * static_cast<double>(sizeof(UnsentMeasure) + kCheckBytes));
}

}  // namespace

ElasticReducer::ElasticReducer(ElasticWorld& world, std::uint64_t n, const ReducerOptions& options, ElasticHooks hooks,
                               const ElasticOptions& elastic)
    : world_(world),
      hooks_(std::move(hooks)),
      elastic_(elastic),
      reducer_(std::make_unique<Reducer>(world.comm(), n, checked(options, elastic))),
      ids_(world.membership().ids),
      epoch_(world.membership().epoch),
      id_(ids_.at(static_cast<std::size_t>(world.comm().rank()))),
      has_state_(world.membership().committed == 0 && world.membership().joined == world.membership().ids),
      has_joined_(!has_state_),
      is_stale_(has_joined_),
      mirror_(std::make_unique<OwnerMirror>()),
      base_(std::make_unique<MemberBase>()) {
  mark_options();
  if (has_state_) *base_ = {.epoch = epoch_, .ids = ids_};
  while (!has_state_) {
    try {
      settle();
    } catch (const StateLost&) {
      throw;  // whoever joins later has it neither
    } catch (const CommError&) {
      recover(nullptr);
    }
  }
}

ElasticReducer::~ElasticReducer() = default;

// Members that joined take no part. They may come in with the repair, so nobody compares after it.
void ElasticReducer::compare(std::string_view who, std::string_view settings) {
  if (has_joined_ || is_stale_) return;
  try {
    Synchroniser::compare(who, settings);
  } catch (const CommError&) {
    recover(nullptr);
  }
}

// The members compare options in the first step of an epoch.
void ElasticReducer::mark_options() {
  reducer_->settings_ +=
      text_of(", mirror ", elastic_.mirror ? "on" : "off", ", measured every ", elastic_.measure_every);
}

Update ElasticReducer::step(Gradient gradient, float scale) {
  return make([=](Reducer& reducer) { return reducer.propose(gradient, scale); });
}

Update ElasticReducer::flush() {
  return make([](Reducer& reducer) { return reducer.propose_flush(); });
}

void ElasticReducer::collective(std::span<std::byte> result, const std::function<void(Communicator&)>& run) {
  if (replayed_ == results_.size())
    act({[&] { run(world_.comm()); }, [&] { results_.emplace_back(result.begin(), result.end()); }});
  const Bytes& agreed = results_[replayed_++];
  require(agreed.size() == result.size(), "elastic reducer: a collective with a result of ", result.size(),
          " bytes, but the other members have one of ", agreed.size());
  std::ranges::copy(agreed, result.begin());
}

void ElasticReducer::leave_after_next() {
  require(!has_left(), "elastic reducer: leave_after_next(), but this member has left");
  leaving_ = Leaving::announced;
}

// A refusal of all members is voted on as a step is: whoever has missed it makes the call again with the others.
Update ElasticReducer::make(const Propose& propose) {
  std::exception_ptr refusal;
  const auto try_it = [&] {
    refusal = nullptr;
    try {
      attempt(propose);
    } catch (const UsageError& error) {
      if (!is_seen_by_all(error)) throw;
      refusal = std::current_exception();
    }
  };
  act({try_it, [&] { refusal ? refuse() : commit_step(); }});
  if (refusal) std::rethrow_exception(refusal);
  if (leaving_ == Leaving::parting || std::exchange(somebody_leaves_, false)) say_goodbye();
  return open_update_;
}

void ElasticReducer::act(const Action& action) {
  require(!has_left(), "elastic reducer: this member has left, and makes no further calls");
  for (;;) {
    try {
      settle();
      action.attempt();
      vote();
      action.commit();
      ++actions_;
      return;
    } catch (const CommError&) {
      if (recover(&action)) return;
    } catch (const UsageError&) {
      refuse();
      throw;
    }
  }
}

// The notes of all ranks are compared before anything changes, and all ranks see the sum that overflows.
bool ElasticReducer::is_seen_by_all(const UsageError& error) const {
  const bool is_noted = reducer_->options_.nan_policy != NanPolicy::local && !reducer_->is_open();
  return is_noted || dynamic_cast<const SumOverflow*>(&error) != nullptr ||
         dynamic_cast<const Divergence*>(&error) != nullptr;
}

// There is no retry: values that were added stay unsent.
void ElasticReducer::refuse() {
  if (reducer_->is_open()) reducer_->roll_back();
  reducer_->is_added_ = false;
  mirror_->drop();
  gathered_.clear();
  results_.clear();
  replayed_ = 0;
}

void ElasticReducer::attempt(const Propose& propose) {
  open_update_ = propose(*reducer_);
  if (mirrors()) exchange_mirrors();
  if (has_measured_) exchange_measures();
}

bool ElasticReducer::mirrors() const {
  return elastic_.mirror && ids_.size() > 1 && state_of(std::as_const(*reducer_)).rule->owner_remembers;
}

void ElasticReducer::exchange_mirrors() {
  ReducerState& state = state_of(*reducer_);
  const bool decays = !open_update_.is_dense() && !open_update_.skipped;
  mirror_->exchange(world_.comm(), {.device = *reducer_->options_.device,
                                    .owner = *state.allreduce,
                                    .n = reducer_->n(),
                                    .number = actions_,
                                    .is_dense = open_update_.is_dense(),
                                    .decay = decays ? reducer_->options_.decay : 1});
}

void ElasticReducer::exchange_measures() {
  gathered_.resize(ids_.size());
  allgather(world_.comm(), std::as_bytes(std::span(&measure_, 1)), std::as_writable_bytes(std::span(gathered_)), work_);
}

void ElasticReducer::vote() {
  has_voted_ = true;
  const bool leaves = leaving_ == Leaving::announced && reducer_->is_open();
  const std::uint64_t mine = (world_.has_joiners() ? 1 : 0) + (leaves ? kOneLeaves : 0);
  const std::uint64_t all = allreduce_small(world_.comm(), mine, Reduction::sum, work_);
  has_voted_ = false;
  needs_regroup_ = all % kOneLeaves > 0;
  somebody_leaves_ = all >= kOneLeaves;
}

void ElasticReducer::commit_step() {
  reducer_->commit();
  mirror_->commit();
  if (!gathered_.empty()) base_->measures = std::exchange(gathered_, {});
  const bool is_new = base_->epoch != epoch_;
  MembershipChange change{.epoch = epoch_, .step = committed_, .P = static_cast<int>(ids_.size())};
  if (is_new) change = describe_change(std::move(change), *base_, ids_, statements_);
  if (is_new) begin_base();
  base_->has_memory = state_of(std::as_const(*reducer_)).rule->owner_remembers;
  base_->has_mirrors = mirrors();
  ++committed_;
  has_measured_ =
      elastic_.measure_every > 0 && (is_new || committed_ % static_cast<std::uint64_t>(elastic_.measure_every) == 0);
  if (has_measured_) measure();
  results_.clear();
  replayed_ = 0;
  if (leaving_ == Leaving::announced) leaving_ = Leaving::parting;
  if (is_new && hooks_.on_change) hooks_.on_change(change);
}

// From now on losses are those of this epoch.
void ElasticReducer::begin_base() {
  *base_ = {.epoch = epoch_, .ids = ids_};
  for (const Statement& said : statements_) base_->measures.push_back(said.measure);
  inherited_ = 0;
  received_.clear();
}

void ElasticReducer::measure() {
  const Unsent& unsent = state_of(std::as_const(*reducer_)).unsent;
  const Device& device = *reducer_->options_.device;
  const auto [residual_norm, residual_sum] = norm_and_sum(device, unsent.values());
  const OwnerMemory memory = unsent.memory();
  const auto [memory_norm, memory_sum] = norm_and_sum(device, memory.values);
  measure_ = {committed_, residual_norm, residual_sum, memory_norm, memory_sum, memory.region.begin, memory.region.end};
}

// After a CommError. Returns whether the action that was open is committed.
bool ElasticReducer::recover(const Action* action) {
  world_.comm().kill();
  const bool has_voted = std::exchange(has_voted_, false);
  needs_regroup_ = somebody_leaves_ = false;
  regroup();
  const std::uint64_t committed = world_.membership().committed;
  if (!has_state_) return false;
  if (committed > actions_ + (has_voted ? 1 : 0))
    fail<CommError>("elastic reducer: this member has committed ", actions_, " calls, but others have ", committed,
                    ": it can only join anew");
  const bool commits = has_voted && committed == actions_ + 1;
  if (commits) {
    action->commit();
    ++actions_;
  } else {
    if (reducer_->is_open()) reducer_->roll_back();
    mirror_->drop();
    gathered_.clear();
  }
  return commits;
}

void ElasticReducer::regroup() {
  world_.regroup(actions_);
  is_stale_ = true;
}

void ElasticReducer::settle() {
  while ((needs_regroup_ || is_stale_) && !has_left()) {
    if (std::exchange(needs_regroup_, false)) regroup();
    settle_in();
  }
}

void ElasticReducer::write(StateWriter& state) const { reducer_->write(state); }
void ElasticReducer::load(std::span<const std::byte> state) { reducer_->load(state); }
void ElasticReducer::load_all(std::size_t count, const ReadState& read) { reducer_->load_all(count, read); }

StepMetrics ElasticReducer::metrics() const {
  StepMetrics metrics = reducer_->metrics();
  metrics.epoch = world_.membership().epoch;
  return metrics;
}

Prediction ElasticReducer::predict(const Problem& problem) const {
  Prediction prediction = state_of(std::as_const(*reducer_)).predict(problem);
  Cost cost = agreement_cost(problem.P);
  if (elastic_.measure_every > 0) prediction.bound += measures_cost(problem.P);
  prediction.expected += cost;
  prediction.bound += cost;
  if (!elastic_.mirror || !state_of(std::as_const(*reducer_)).rule->owner_remembers) return prediction;
  const Prediction mirror = OwnerMirror::predict(problem);
  prediction.expected += mirror.expected;
  prediction.bound += mirror.bound;
  return prediction;
}

}  // namespace oktopk
