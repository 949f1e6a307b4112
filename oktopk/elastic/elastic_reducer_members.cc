// SPDX-License-Identifier: Apache-2.0
// ElasticReducer: what happens when members have come or gone. The members of a new epoch exchange statements, those
// that joined get the state of the run, the copy of a lost member's memory goes into its holder's residual, and members
// that leave hand over what they have. All of it may fail half-way and is then done again in the next epoch: nothing
// here counts twice.
#include <algorithm>
#include <array>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/elastic/change.h"
#include "oktopk/elastic/handover.h"
#include "oktopk/elastic/mirror.h"
#include "oktopk/elastic/elastic_reducer.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {
namespace {

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

// The members have changed: goes on with those of the new epoch. Collective.
void ElasticReducer::settle_in() {
  reducer_ = reducer_->moved_to(world_.comm());
  mark_options();
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
  if (rank == leaver) read_unsent(*reducer_->options_.device, state_of(*reducer_).unsent, values);
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
