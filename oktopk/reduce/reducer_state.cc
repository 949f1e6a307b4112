// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer_state.h"

#include <array>
#include <bit>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/sparse/slots_format.h"

namespace oktopk {
namespace {

constexpr std::uint32_t kMostRanks = 1U << 24U;

// All but the warm-up must be equal.
std::string without_warmup(std::string_view description) { return with_warmup(description, {}); }

bool is_adaptive(const StateOrigin& origin) { return origin.options.find(kAdaptiveMark) != std::string::npos; }

// A Reducer's content begins with P, rank and divisor, 4 bytes each. A BucketedReducer's and an optimiser's begin with
// the length of a text, 8 bytes, and the text, whose first four letters are no divisor.
std::string_view saver_of(StateReader state) {
  if (state.take<std::uint64_t>() == kNodeState) return "a NodeReducer";
  const auto divisor = state.take<std::uint32_t>();
  if (divisor < kMostRanks) return "a Reducer";
  const auto letters = std::bit_cast<std::array<char, sizeof divisor>>(divisor);
  return kBucketedState.starts_with(std::string_view(letters.data(), letters.size())) ? "a BucketedReducer"
                                                                                      : "an optimiser";
}

// Calls read(state) with what `from` saves.
template <class From, class Read>
void read_saved(const From& from, const Read& read) {
  StateWriter saved;
  from.save(saved);
  const Bytes bytes = saved.seal();
  StateReader state(bytes);
  read(state);
}

template <class Load>
void load_from(const StateWriter& written, const Load& load) {
  const Bytes bytes = written.seal();
  StateReader state(bytes);
  load(state);
}

}  // namespace

void require_saver(StateReader state, std::string_view wanted, std::string_view hint) {
  const std::string_view saver = saver_of(state);
  require(saver == wanted, "state: saved by ", saver, ", but ", wanted, " loads it", hint);
}

void require_own(std::uint32_t savers, std::uint32_t saved_rank, int P, int rank) {
  require(savers == static_cast<std::uint32_t>(P), "state: saved by one of ", savers, " ranks, but there are ", P,
          " now: load_all() takes the states of all");
  require(saved_rank == static_cast<std::uint32_t>(rank), "state: saved by rank ", saved_rank, ", but this is rank ",
          rank);
}

void require_place(std::uint32_t savers, std::uint32_t saved_rank, std::size_t count, std::size_t r) {
  require(savers == count, "saved by one of ", savers, " ranks, but ", count, " states were given: all are needed");
  require(saved_rank == r, "saved by rank ", saved_rank, ": states must be in rank order");
}

void look_into_state(std::size_t r, std::size_t count, const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    fail<UsageError>("state ", r, " of ", count, ": ", error.what());
  }
}

void require_same(std::string_view saved, std::string_view mine, std::string_view hint) {
  if (saved == mine) return;
  const auto [theirs, ours] = first_difference(saved, mine);
  fail<UsageError>("state: saved with ", theirs, ", but this reducer has ", ours, hint);
}

void StateOrigin::write(StateWriter& state) const {
  state.put(P, rank, divisor, n);
  state.put_text(options);
  state.put(steps);
  if (is_adaptive(*this))
    for (const std::uint64_t word : adaptive) state.put(word);
}

StateOrigin StateOrigin::read(StateReader& state) {
  require_saver(state, "a Reducer");
  StateOrigin origin;
  origin.P = state.take<std::uint32_t>();
  origin.rank = state.take<std::uint32_t>();
  origin.divisor = state.take<std::uint32_t>();
  origin.n = state.take<std::uint64_t>();
  origin.options = state.take_text();
  origin.steps = state.take<std::uint64_t>();
  if (is_adaptive(origin))
    for (std::uint64_t& word : origin.adaptive) word = state.take<std::uint64_t>();
  return origin;
}

ReducerState::ReducerState(const ReducerSetting& its_setting, const std::optional<Tuner>& its_tuner)
    : setting(its_setting), density(setting.options, setting.n), unsent(*setting.options.device, setting.n) {
  use(its_tuner);
}

void ReducerState::use(const std::optional<Tuner>& its_tuner) {
  const ReducerOptions& options = setting.options;
  const Preset& preset = find_preset(its_tuner ? its_tuner->choice().method.preset : options.preset);
  auto exchange =
      make_allreduce(preset, its_tuner ? options_of(its_tuner->choice().method, options) : options.allreduce);
  selector =
      make_selector(selector_of(options, preset, options.allreduce), selector_options(options.allreduce, setting.P));
  allreduce = std::move(exchange);
  rule = &residual_rule(allreduce->options().residual);
  tuner = its_tuner;
  unsent.belongs_to(*allreduce);
}

void ReducerState::adopt_choice() {
  unsent.fold_memory();
  use(std::optional<Tuner>(tuner));
  clear_results();
}

void ReducerState::use_profile(const Profile& profile) {
  require(tuner && !tuner->is_calibrated(), "reducer: a profile is for preset auto, before the first step");
  if (setting.options.profile) return;
  const Method before = tuner->choice().method;
  tuner->use(profile);
  if (tuner->choice().method != before) adopt_choice();
}

bool ReducerState::is_calibration_due() const {
  return tuner && !tuner->is_calibrated() && !setting.options.profile && setting.P > 1;
}

void ReducerState::clear_results() {
  selection.clear();
  log.last = {};
  is_prepared = false;
}

Prediction ReducerState::predict(const Problem& problem) const {
  return with_agreement(allreduce->predict(problem), setting.options, problem.P, problem.P);
}

// Residual and owner memory come first, so that a merge can read them with any options.
void ReducerState::write(StateWriter& state) const {
  require(!unsent.is_spoilt(), "reducer: an earlier step failed half-way: what is left of it is not worth saving");
  settle_gpu();
  StateOrigin{static_cast<std::uint32_t>(setting.P),
              static_cast<std::uint32_t>(setting.rank),
              static_cast<std::uint32_t>(setting.divisor),
              setting.n,
              with_warmup(setting.description, density.warmup()),
              density.steps(),
              density.adaptive().words()}
      .write(state);
  unsent.write(state);
  if (tuner) tuner->save(state);
  selector->save(state);
  allreduce->save(state);
}

void ReducerState::read(std::span<const std::byte> bytes) {
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  require(origin.n == setting.n, "state: saved with n = ", origin.n, ", but this reducer has n = ", setting.n);
  require_own(origin.P, origin.rank, setting.P, setting.rank);
  require_same(without_warmup(origin.options), without_warmup(setting.description),
               ": load_all() takes the states of all ranks");
  const SavedUnsent saved = SavedUnsent::read(state);
  require(saved.residual.size() == setting.n, "state: ", saved.residual.size(), " values of residual");
  if (tuner) {
    tuner->load(state);
    use(std::optional<Tuner>(tuner));
  }
  continue_after(origin);
  unsent.restore(saved.residual, true, false);
  selector->load(state);
  allreduce->load(state, setting.n, setting.rank, setting.P);
  state.finish();
  allreduce->load_memory(*setting.options.device, saved.memory);
  const MemoryLayout mine = allreduce->memory();
  const MemoryLayout& layout = saved.layout;
  require(layout.region.begin == mine.region.begin && layout.tile == mine.tile && layout.stride == mine.stride,
          "state: owner memory from ", layout.region.begin, " on, but this rank's region begins at ",
          mine.region.begin);
}

void ReducerState::continue_after(const StateOrigin& origin) {
  density.begin_at({.steps = origin.steps});
  density.continue_after(warmup_in(origin.options));
  density.adaptive().resume(origin.adaptive);
  source = hash_text(describe(density.warmup()));
}

bool ReducerState::is_own(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  return without_warmup(origin.options) == without_warmup(setting.description) && origin.n == setting.n &&
         origin.P == static_cast<std::uint32_t>(setting.P) && origin.rank == static_cast<std::uint32_t>(setting.rank);
}

// Cheap enough for every step: the residual is copied as it is, and nothing is sealed before it is needed.
void ReducerState::copy_to(ReducerSnapshot& snapshot) const {
  settle_gpu();
  snapshot.density = density;
  snapshot.tuner = tuner;
  snapshot.is_spoilt = unsent.is_spoilt();
  snapshot.has_unsent = unsent.may_exist();
  snapshot.residual.resize(unsent.may_exist() ? setting.n : 0);
  if (unsent.may_exist()) setting.options.device->read(unsent.values(), snapshot.residual.data());
  snapshot.rest = {};
  selector->save(snapshot.rest);
  allreduce->save(snapshot.rest);
  unsent.write_memory(snapshot.rest);
}

void ReducerState::go_back(const ReducerSnapshot& snapshot) {
  leave_gpu();
  const std::optional<Tuner> now = tuner;
  const Bytes rest = snapshot.rest.seal();
  StateReader state(rest);
  use(snapshot.tuner);
  selector->load(state);
  allreduce->load(state, setting.n, setting.rank, setting.P);
  allreduce->load_memory(*setting.options.device, state.take_all<float>());
  state.finish();
  density = *snapshot.density;
  unsent.restore(snapshot.residual, snapshot.has_unsent, snapshot.is_spoilt);
  clear_results();
  if (now && now->is_calibrated() && !tuner->is_calibrated()) use_profile(now->profile());  // nobody measures again
}

// ---- Tentative steps: the exchange notes its own changes ----

void ReducerState::mark() {
  mark_.emplace(TentativeMark{density, {}, allreduce->steps() == 0});
  selector->save(mark_->selector);
  allreduce->note_changes();
}

void ReducerState::keep() {
  mark_.reset();
  allreduce->forget_changes();
}

void ReducerState::take_back() {
  if (!mark_) return;
  if (mark_->is_first) {
    use(std::optional<Tuner>(tuner));  // an exchange that has not run yet
  } else {
    allreduce->undo_changes(*setting.options.device, setting.n, setting.rank, setting.P);
  }
  const Bytes before = mark_->selector.seal();
  StateReader state(before);
  selector->load(state);
  density = mark_->density;
  mark_.reset();
  clear_results();
}

// ---- Steps on the GPU: thresholds and the number of steps move between host and GPU as saved states do ----

std::span<float> ReducerState::open_memory() {
  return allreduce->open(*setting.options.device, setting.n, setting.rank, setting.P);
}

CudaSlots& ReducerState::on_gpu() {
  if (gpu_ == nullptr) {
    const Device& device = *setting.options.device;
    open_memory();
    gpu_ = std::make_unique<CudaSlots>(device, setting.n, setting.P, gpu_tag());
    OktopkCudaSlotsState now{};
    read_saved(*selector, [&](StateReader& state) {
      now.local_k = state.take<std::uint64_t>();
      now.local_bound = state.take<std::uint32_t>();
    });
    read_saved(*allreduce, [&](StateReader& state) {
      now.step = state.take<std::uint64_t>();
      if (now.step == 0) return;
      now.global_k = state.take<std::uint64_t>();
      now.global_bound = state.take<std::uint32_t>();
    });
    gpu_->set_state(now);
  }
  is_gpu_ahead_ = true;
  return *gpu_;
}

void ReducerState::settle_gpu() const {
  if (!is_gpu_ahead_) return;
  is_gpu_ahead_ = false;
  const OktopkCudaSlotsState now = gpu_->state();
  StateWriter local;
  local.put(std::uint64_t{now.local_k}, now.local_bound);
  load_from(local, [&](StateReader& state) { selector->load(state); });
  if (now.step == 0) return;
  StateWriter global;
  global.put(std::uint64_t{now.step}, std::uint64_t{now.global_k}, now.global_bound);
  load_from(global, [&](StateReader& state) { allreduce->load(state, setting.n, setting.rank, setting.P); });
}

void ReducerState::leave_gpu() {
  settle_gpu();
  gpu_.reset();
}

std::size_t ReducerState::gpu_words(std::size_t k) const {
  return slots::message_words(slots::Deal::of(setting.n, static_cast<std::uint32_t>(setting.P)), k);
}

void ReducerState::note_gpu_messages(std::size_t k) {
  const auto peers = static_cast<std::uint64_t>(setting.P - 1);
  log.besides = {2 * peers, 2 * peers * sizeof(std::uint32_t) * gpu_words(k)};
}

// Counts of entries stay on the GPU.
void ReducerState::end_gpu_step(std::size_t k) {
  is_prepared = false;
  selection.clear();
  outcome = {};
  density.count_step();
  note_gpu_messages(k);
  log.last.step = density.steps();
  log.last.k = k;
  log.last.messages = log.besides.messages;
  log.last.wire_bytes = log.besides.bytes;
}

std::uint32_t ReducerState::gpu_tag() const { return static_cast<std::uint32_t>(hash_text(setting.description)); }

// ---- Merging ----

StateMerge::StateMerge(const ReducerState& state, std::size_t count)
    : count_(count), state_(std::make_unique<ReducerState>(state.setting, state.tuner)) {
  require(count > 0, "state: no states were given");
}

void StateMerge::add(std::span<const std::byte> state) {
  look_into_state(next_, count_, [&] { add_next(state); });
  ++next_;
}

void StateMerge::add_next(std::span<const std::byte> bytes) {
  const ReducerSetting& to = state_->setting;
  StateReader state(bytes);
  const StateOrigin origin = StateOrigin::read(state);
  require(origin.n == to.n, "saved with n = ", origin.n, ", but this reducer has n = ", to.n);
  require_place(origin.P, origin.rank, count_, next_);
  if (next_ == 0) {
    first_ = origin;
    state_->continue_after(origin);
  }
  require(origin.steps == first_.steps, "saved after ", origin.steps, " steps, state 0 after ", first_.steps);
  require(origin.options == first_.options, "saved with other options than state 0");
  require(origin.adaptive == first_.adaptive, "saved with another adaptive density than state 0");
  require(origin.divisor > 0, "its sums were divided by 0");
  state_->source = hash_bytes(bytes.first(kStateHeadBytes), state_->source);
  if (next_ % static_cast<std::size_t>(to.P) != static_cast<std::size_t>(to.rank)) return;
  const SavedUnsent saved = SavedUnsent::read(state);
  require(saved.residual.size() == to.n, "its residual does not fit n = ", to.n);
  const float scale = static_cast<float>(to.divisor) / static_cast<float>(origin.divisor);
  const Device& device = *to.options.device;
  Residual& sum = state_->unsent.residual();
  sum.add_host(saved.residual, scale);
  sum.add(saved.remembered(to.n, scale));
  const std::size_t bad = device.first_nonfinite(sum.values());
  require(bad == to.n, "the sum of what the ranks had unsent overflows at index ", bad);
}

std::unique_ptr<ReducerState> StateMerge::finish() {
  require(next_ == count_, "state: ", next_, " of ", count_, " states were merged");
  state_->unsent.set_may_exist(true);
  return std::move(state_);
}

}  // namespace oktopk
