// SPDX-License-Identifier: Apache-2.0
#include "oktopk/elastic/elastic_reducer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/elastic/change.h"
#include "oktopk/elastic/mirror.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
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

// The members compare it in the first step of an epoch.
std::string describe(const ElasticOptions& elastic) {
  return text_of(", mirror ", elastic.mirror ? "on" : "off", ", measured every ", elastic.measure_every);
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

constexpr std::uint64_t kNothing = 0;  // actions of a member without the state

// The place in the schedules, which members that join take over, and the length of the caller's bytes.
using Place = std::array<std::uint64_t, 9>;  // committed, actions, steps, adaptive density (3), bytes, hash, check

std::uint64_t check_of(const Place& place) {
  return hash_bytes(std::as_bytes(std::span(place).first(place.size() - 1)));
}

// Residual and owner memory, which both stay: the handover may fail.
void read_unsent(const Device& device, const Unsent& unsent, std::span<float> out) {
  device.read(unsent.values(), out.data());
  const OwnerMemory memory = unsent.memory();
  std::vector<float> remembered(memory.values.size());
  device.read(memory.values, remembered.data());
  for (std::size_t place = 0; place < remembered.size(); ++place)
    if (remembered[place] != 0) out[memory.index(place)] += remembered[place];
}

}  // namespace

ElasticReducer::ElasticReducer(ElasticWorld& world, std::uint64_t n, const ReducerOptions& options, ElasticHooks hooks,
                               const ElasticOptions& elastic)
    : world_(world),
      hooks_(std::move(hooks)),
      elastic_(elastic),
      reducer_(new Reducer(world.comm(), checked_size("reducer", n), checked(options, elastic),
                           {.settings = describe(elastic)})),
      ids_(world.membership().ids),
      epoch_(world.membership().epoch),
      id_(ids_.at(static_cast<std::size_t>(world.comm().rank()))),
      has_state_(world.membership().committed == 0 && world.membership().joined == world.membership().ids),
      has_joined_(!has_state_),
      is_stale_(has_joined_),
      mirror_(std::make_unique<OwnerMirror>()),
      base_(std::make_unique<MemberBase>()) {
  check_used(options);
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

const ReducerOptions& ElasticReducer::options() const { return state().setting.options; }

// Members that joined take no part. They may come in with the repair, so nobody compares after it.
void ElasticReducer::compare(std::string_view who, std::string_view settings) {
  if (has_joined_ || is_stale_) return;
  try {
    Synchroniser::compare(who, settings);
  } catch (const CommError&) {
    recover(nullptr);
  }
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
  const bool is_noted = options().nan_policy != NanPolicy::local && !reducer_->is_open();
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

bool ElasticReducer::mirrors() const { return elastic_.mirror && ids_.size() > 1 && state().rule->owner_remembers; }

void ElasticReducer::exchange_mirrors() {
  const bool decays = !open_update_.is_dense() && !open_update_.skipped;
  mirror_->exchange(world_.comm(), {.device = *options().device,
                                    .owner = *state().allreduce,
                                    .n = reducer_->n(),
                                    .number = actions_,
                                    .is_dense = open_update_.is_dense(),
                                    .decay = decays ? options().decay : 1});
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
  base_->has_memory = state().rule->owner_remembers;
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
  const Unsent& unsent = state().unsent;
  const Device& device = *options().device;
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
  Prediction prediction = state().predict(problem);
  Cost cost = agreement_cost(problem.P);
  if (elastic_.measure_every > 0) prediction.bound += measures_cost(problem.P);
  prediction.expected += cost;
  prediction.bound += cost;
  if (!elastic_.mirror || !state().rule->owner_remembers) return prediction;
  const Prediction mirror = OwnerMirror::predict(problem);
  prediction.expected += mirror.expected;
  prediction.bound += mirror.bound;
  return prediction;
}

// ---- Members have come or gone ----
//
// The members of a new epoch exchange statements, those that joined get the state of the run, the copy of a lost
// member's memory goes into its holder's residual, and members that leave hand over what they have. All of it may fail
// half-way and is then done again in the next epoch: nothing here counts twice.

// The members have changed: goes on with those of the new epoch. Collective.
void ElasticReducer::settle_in() {
  reducer_ = reducer_->moved_to(world_.comm());
  mirror_->begin_epoch();
  ids_ = world_.membership().ids;
  epoch_ = world_.membership().epoch;
  has_measured_ = false;
  gathered_.clear();
  statements_ = exchange_statements(world_.comm(), statement());
  const int source = find_source();
  if (source >= 0) share_state(source);
  inherit();
  is_stale_ = false;
  if (std::ranges::any_of(statements_, &Statement::is_parting)) part();
}

Statement ElasticReducer::statement() const {
  Statement mine{.actions = has_state_ ? actions_ + 1 : kNothing,
                 .is_parting = leaving_ == Leaving::parting,
                 .measure = measure_,
                 .region_begin = mirror_->layout().region.begin,
                 .region_end = mirror_->layout().region.end,
                 .received = received_};
  for (const MemberId id : base_->ids)
    if (base_->holder_of(id) == id_) mine.mirrored = id;
  return mine;
}

// The first member that has the state, and whose caller has applied the last update; -1 where all have the state.
int ElasticReducer::find_source() const {
  int source = -1;
  std::uint64_t most = kNothing;
  for (const Statement& said : statements_) most = std::max(most, said.actions);
  for (std::size_t r = statements_.size(); r-- > 0;) {
    const Statement& said = statements_[r];
    if (said.actions != most && said.actions != kNothing)
      fail_world(world_.comm(), "elastic reducer: some members have committed ", said.actions - 1, " calls, others ",
                 most - 1);
    if (said.actions == most && !said.is_parting) source = static_cast<int>(r);
  }
  const bool all_have = std::ranges::none_of(statements_, [](const Statement& s) { return s.actions == kNothing; });
  if (all_have && most != kNothing) return -1;
  if (most == kNothing || source < 0)
    fail<StateLost>("elastic reducer: no member is left that has the state of the run");
  return source;
}

void ElasticReducer::share_state(int source) {
  const bool is_source = world_.comm().rank() == source;
  DensityPlan& density = state_of(*reducer_).density;
  const AdaptiveDensity::Words k = density.adaptive().words();
  Bytes shared;
  if (is_source) shared = write_shared();
  Place place{committed_, actions_, density.steps(), k[0], k[1], k[2], shared.size(), hash_bytes(shared)};
  place.back() = check_of(place);
  broadcast(world_.comm(), source, std::as_writable_bytes(std::span(place)));
  // Before anything is allocated: a broadcast has no check of its own.
  if (place.back() != check_of(place)) fail_world(world_.comm(), "elastic reducer: the place in the run is damaged");
  shared.resize(place[6]);
  share_bytes(source, shared);
  if (hash_bytes(shared) != place[7]) fail_world(world_.comm(), "elastic reducer: the shared state arrived damaged");
  if (has_state_) return;
  committed_ = place[0];
  actions_ = place[1];
  density.begin_at({.steps = place[2]});
  density.adaptive().resume({place[3], place[4], place[5]});
  read_shared(shared);
  measure_ = {.step = committed_};  // nothing is unsent
  has_state_ = true;
}

// The state of the run: the caller's bytes, the members at the last committed step, and the results since then.
Bytes ElasticReducer::write_shared() const {
  const Bytes callers = hooks_.save_shared ? hooks_.save_shared() : Bytes{};
  return write_state([&](StateWriter& state) {
    state.put_bytes(callers);
    state.put(base_->epoch, base_->has_memory, base_->has_mirrors);
    state.put_all(std::span<const MemberId>(base_->ids));
    state.put_bytes(std::as_bytes(std::span(base_->measures)));
    state.put(std::uint64_t{results_.size()});
    for (const Bytes& result : results_) state.put_bytes(result);
  });
}

void ElasticReducer::read_shared(std::span<const std::byte> bytes) {
  StateReader state(bytes);
  const std::span<const std::byte> callers = state.take_view();
  base_->epoch = state.take<std::uint64_t>();
  base_->has_memory = state.take<bool>();
  base_->has_mirrors = state.take<bool>();
  base_->ids = state.take_all<MemberId>();
  const std::span<const std::byte> measures = state.take_view();
  base_->measures.resize(measures.size() / sizeof(UnsentMeasure));
  std::ranges::copy(measures, std::as_writable_bytes(std::span(base_->measures)).begin());
  results_.resize(state.take<std::uint64_t>());
  for (Bytes& result : results_) {
    const std::span<const std::byte> view = state.take_view();
    result.assign(view.begin(), view.end());
  }
  state.finish();
  if (hooks_.load_shared) hooks_.load_shared(callers);
}

// All members take part, so that nobody waits for longer than a piece takes.
void ElasticReducer::share_bytes(int source, Bytes& bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPieceBytes)
    broadcast(world_.comm(), source, std::span(bytes).subspan(begin, std::min(kPieceBytes, bytes.size() - begin)));
}

// The memory of a lost member, of which this one has the copy, becomes unsent here. A member that left has given its
// memory to its heir.
void ElasticReducer::inherit() {
  const MemberId owner = statements_[static_cast<std::size_t>(world_.comm().rank())].mirrored;
  const bool is_here = std::ranges::binary_search(ids_, owner);
  if (owner == 0 || is_here || inherited_ != 0 || is_received(statements_, owner)) return;
  Unsent& unsent = state_of(*reducer_).unsent;
  unsent.residual().add(mirror_->entries());
  unsent.set_may_exist(true);
  inherited_ = owner;
}

// After the last step of some members. A member that stays returns at once after a failure: the next step does the
// rest. A member that leaves must not go before all know that the step is committed, and before somebody has what it
// had unsent.
void ElasticReducer::say_goodbye() {
  if (leaving_ == Leaving::parting) keep_update();
  for (;;) {
    try {
      if (is_stale_) {
        settle();
      } else {
        statements_ = exchange_statements(world_.comm(), statement());
        part();
      }
    } catch (const CommError&) {
      recover(nullptr);
    }
    if (leaving_ != Leaving::parting) return;
  }
}

// Collective: some members leave, as the statements say.
void ElasticReducer::part() {
  for (std::size_t r = 0; r < statements_.size(); ++r)
    if (statements_[r].is_parting && !is_received(statements_, ids_[r])) hand_over_from(r);
  barrier(world_.comm());  // whoever has come here has committed, and has what was given to it
  if (leaving_ == Leaving::parting) {
    leaving_ = Leaving::left;
    world_.leave();
  } else {
    needs_regroup_ = true;
  }
}

// To the next member that stays. Where nobody stays, the run is over.
void ElasticReducer::hand_over_from(std::size_t leaver) {
  const std::size_t P = ids_.size();
  std::size_t heir = (leaver + 1) % P;
  while (heir != leaver && statements_[heir].is_parting) heir = (heir + 1) % P;
  if (heir == leaver) return;
  const auto rank = static_cast<std::size_t>(world_.comm().rank());
  std::vector<float> values(rank == leaver || rank == heir ? reducer_->n() : 0);
  if (rank == leaver) read_unsent(*options().device, state_of(*reducer_).unsent, values);
  hand_over(world_.comm(), {static_cast<int>(leaver), static_cast<int>(heir)}, values, reducer_->n());
  if (rank != heir) return;
  Unsent& unsent = state_of(*reducer_).unsent;
  unsent.residual().add_host(values, 1);
  unsent.set_may_exist(true);
  received_.push_back(ids_[leaver]);
}

// The Reducer that has the update may be replaced before the caller gets it.
void ElasticReducer::keep_update() {
  kept_sparse_.clear();
  kept_sparse_.append(open_update_.sparse);
  kept_dense_.assign(open_update_.dense.begin(), open_update_.dense.end());
  open_update_.sparse = kept_sparse_;
  open_update_.dense = kept_dense_;
}

}  // namespace oktopk
