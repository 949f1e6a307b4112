// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/elastic_reducer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_state.h"

namespace oktopk {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;  // of shared state: no wait is longer than for one piece
constexpr std::uint64_t kNothing = 0;                       // a member without the state

// All members that are left have joined and wait for the state.
struct StateLost : CommError {
  using CommError::CommError;
};

const ReducerOptions& checked(const ReducerOptions& options) {
  require(!options.exchange, "elastic reducer: options.exchange is for ranks that stay the same");
  require(options.preset != "auto" || options.profile,
          "elastic reducer: preset auto without a profile, but members that join later could not help to measure one");
  return options;
}

// The place in the schedules, which members that join take over, and the length of the caller's bytes.
using Place = std::array<std::uint64_t, 8>;  // committed, steps, adaptive density (3), bytes, hash, check

std::vector<MemberId> without(const std::vector<MemberId>& all, const std::vector<MemberId>& some) {
  std::vector<MemberId> rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

// Says whether members wait to join.
Cost agreement_cost(int P) {
  const double rounds = ceil_log2(P);
  return sequential(rounds, rounds * (sizeof(std::uint64_t) + kCheckBytes));
}

}  // namespace

ElasticReducer::ElasticReducer(ElasticWorld& world, std::uint64_t n, const ReducerOptions& options, ElasticHooks hooks)
    : world_(world),
      hooks_(std::move(hooks)),
      reducer_(std::make_unique<Reducer>(world.comm(), n, checked(options))),
      ids_(world.membership().ids),
      has_state_(world.membership().committed == 0 && world.membership().joined == world.membership().ids),
      has_joined_(!has_state_),
      is_stale_(has_joined_) {
  while (!has_state_) {
    try {
      settle_in();
    } catch (const StateLost&) {
      throw;  // whoever joins later has it neither
    } catch (const CommError&) {
      recover();
    }
  }
}

ElasticReducer::~ElasticReducer() = default;

Update ElasticReducer::step(Gradient gradient, float scale) {
  return make([=](Reducer& reducer) { return reducer.propose(gradient, scale); });
}

Update ElasticReducer::flush() {
  return make([](Reducer& reducer) { return reducer.propose_flush(); });
}

Update ElasticReducer::make(const Propose& propose) {
  for (;;) {
    try {
      return try_once(propose);
    } catch (const CommError&) {
      if (recover()) return open_update_;
    } catch (const UsageError&) {
      if (reducer_->is_open()) reducer_->roll_back();
      reducer_->is_added_ = false;  // there is no retry: what was added stays unsent
      throw;
    }
  }
}

Update ElasticReducer::try_once(const Propose& propose) {
  if (std::exchange(has_joiners_, false)) regroup();
  if (is_stale_) settle_in();
  open_update_ = propose(*reducer_);
  has_voted_ = true;
  const std::uint64_t nobody_waits = world_.has_joiners() ? 0 : 1;
  has_joiners_ = allreduce_small(world_.comm(), nobody_waits, Reduction::min, work_) == 0;
  has_voted_ = false;
  reducer_->commit();
  ++committed_;
  return open_update_;
}

// After a CommError. Returns whether the step that was open is committed.
bool ElasticReducer::recover() {
  world_.comm().kill();
  const bool has_voted = std::exchange(has_voted_, false);
  has_joiners_ = false;
  regroup();
  const std::uint64_t committed = world_.membership().committed;
  if (!has_state_) return false;
  if (committed > committed_ + (has_voted ? 1 : 0))
    fail<CommError>("elastic reducer: this member has committed ", committed_, " steps, but others have ", committed,
                    ": it can only join anew");
  const bool commits = has_voted && committed == committed_ + 1;
  if (commits) {
    reducer_->commit();
    ++committed_;
  } else if (reducer_->is_open()) {
    reducer_->roll_back();
  }
  return commits;
}

void ElasticReducer::regroup() {
  world_.regroup(committed_);
  is_stale_ = true;
}

// The members have changed: goes on with those of the new epoch. Collective.
void ElasticReducer::settle_in() {
  const Membership& now = world_.membership();
  reducer_ = reducer_->moved_to(world_.comm());
  const std::vector<MemberId> before = std::exchange(ids_, now.ids);
  const MembershipChange change{now.epoch, without(before, ids_), without(ids_, before), committed_,
                                static_cast<int>(ids_.size())};
  const int source = find_source();
  if (source >= 0) share_state(source);
  is_stale_ = false;
  if (hooks_.on_change) hooks_.on_change(change);
}

// The first member that has the state; -1 where all have it.
int ElasticReducer::find_source() {
  const std::uint64_t mine = has_state_ ? committed_ + 1 : kNothing;
  std::vector<std::uint64_t> all(ids_.size());
  allgather(world_.comm(), std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work_);
  const std::uint64_t most = *std::ranges::max_element(all);
  if (most == kNothing) fail<StateLost>("elastic reducer: no member is left that has the state of the run");
  for (const std::uint64_t steps : all)
    if (steps != most && steps != kNothing)
      fail_world(world_.comm(), "elastic reducer: some members have committed ", steps - 1, " steps, others ",
                 most - 1);
  if (std::ranges::find(all, kNothing) == all.end()) return -1;
  return static_cast<int>(std::ranges::find(all, most) - all.begin());
}

void ElasticReducer::share_state(int source) {
  const bool is_source = world_.comm().rank() == source;
  DensityPlan& density = state_of(*reducer_).density;
  const AdaptiveDensity::Words k = density.adaptive().words();
  Bytes shared;
  if (is_source && hooks_.save_shared) shared = hooks_.save_shared();
  Place place{committed_, density.steps(), k[0], k[1], k[2], shared.size(), hash_bytes(shared)};
  const auto check_of = [&] { return hash_bytes(std::as_bytes(std::span(place).first(place.size() - 1))); };
  place.back() = check_of();
  broadcast(world_.comm(), source, std::as_writable_bytes(std::span(place)));
  // Before anything is allocated: a broadcast has no check of its own.
  if (place.back() != check_of()) fail_world(world_.comm(), "elastic reducer: the place in the run is damaged");
  shared.resize(place[5]);
  share_bytes(source, shared);
  if (hash_bytes(shared) != place[6]) fail_world(world_.comm(), "elastic reducer: the shared state arrived damaged");
  if (has_state_) return;
  committed_ = place[0];
  density.begin_at({.steps = place[1]});
  density.adaptive().resume({place[2], place[3], place[4]});
  if (hooks_.load_shared) hooks_.load_shared(shared);
  has_state_ = true;
}

// All members take part, so that nobody waits for longer than a piece takes.
void ElasticReducer::share_bytes(int source, Bytes& bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPieceBytes)
    broadcast(world_.comm(), source, std::span(bytes).subspan(begin, std::min(kPieceBytes, bytes.size() - begin)));
}

void ElasticReducer::write(StateWriter& state) const { reducer_->write(state); }
void ElasticReducer::load(std::span<const std::byte> state) { reducer_->load(state); }
void ElasticReducer::load_all(std::size_t count, const ReadState& read) { reducer_->load_all(count, read); }

Prediction ElasticReducer::predict(const Problem& problem) const {
  Prediction prediction = state_of(std::as_const(*reducer_)).predict(problem);
  prediction.expected += agreement_cost(problem.P);
  prediction.bound += agreement_cost(problem.P);
  return prediction;
}

}  // namespace oktopk
