// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/reduce/gpu_steps.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// False if a sum is not finite: looking here saves a pass.
bool divide(std::span<const float> sum, int by, std::span<float> mean) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  const auto divisor = static_cast<float>(by);
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    wrong |= (std::bit_cast<std::uint32_t>(sum[i]) & kInfinity) == kInfinity ? 1U : 0U;
    mean[i] = sum[i] / divisor;
  }
  return wrong == 0;
}

// Leaves the entries at held.idx out of v. Both are canonical, and v has all of them.
void leave_out(const SparseVector& held, SparseVector& v) {
  if (held.empty()) return;
  std::size_t kept = 0;
  auto next = held.idx.begin();
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (next != held.idx.end() && *next == v.idx[i]) {
      ++next;
      continue;
    }
    v.idx[kept] = v.idx[i];
    v.val[kept++] = v.val[i];
  }
  v.resize(kept);
}

// The share of the accumulator that leaves this rank. An accumulator that overflowed was refused before: all numbers
// are finite, and so are their squares in double.
SentShare sent_share(const Device& device, std::span<const float> acc, CooView selection) {
  const Moments moments = device.moments(acc);
  const double mean_square = moments.mean * moments.mean + moments.standard_deviation * moments.standard_deviation;
  double sent = 0;
  for (const float x : selection.val) sent += double{x} * double{x};
  return SentShare::of(sent, mean_square * static_cast<double>(acc.size()));
}

}  // namespace

Reducer::Reducer(Communicator& comm, std::uint64_t n, const ReducerOptions& options)
    : Reducer(comm, checked_size("reducer", n), options, Role{}) {
  check_used(options);
}

Reducer::Reducer(Communicator& comm, Index n, const ReducerOptions& options, Role role)
    : n_(n),
      traced_(trace_messages(comm, options)),
      comm_(traced_ ? *traced_ : comm),
      options_(options),
      role_(std::move(role)),
      k_(entries_per_step(n, options)),
      description_(describe(options, n, role_.divisor)),
      // No part of the description: a state may continue with the caller's dense or with ours, and with other checks.
      settings_(description_ + (options.choice.external_dense ? ", external dense" : "") + ", check every " +
                digits(options.check_every) + role_.settings),
      dense_(make_allreduce(find_preset("dense"), {.dense = options.allreduce.dense})) {
  options_.trace = options.trace.on_rank(comm.rank());
  options_.device = device_of(options);
  std::optional<Tuner> tuner;
  if (options.preset == "auto") tuner = make_tuner(options_, n_, comm.size(), options.profile.value_or(Profile{}));
  const ReducerSetting setting{n_,       comm.rank(),  comm.size(),
                               options_, description_, role_.divisor > 0 ? role_.divisor : comm.size()};
  state_ = std::make_unique<ReducerState>(setting, tuner);
  state_->allreduce->check_ranks(comm.size());
  if (options_.exchange) gpu_steps_ = std::make_unique<GpuSteps>(*this);
}

Reducer::~Reducer() = default;

CooView Reducer::sent() const {
  if (gpu_steps_) gpu_steps_->fetch_selection();
  return state_->selection;
}
void Reducer::subtract_unsent(std::span<float> x) const { state_->unsent.subtract_from(x); }
double Reducer::unsent_norm() const { return state_->unsent.norm(); }
StepTimes Reducer::times() const { return state_->log.last.times; }
std::uint64_t Reducer::steps() const { return state_->density.steps(); }

StepMetrics Reducer::metrics() const {
  StepMetrics metrics = state_->log.metrics(n_, state_->setting.P, sent(), state_->outcome.update);
  metrics.preset = state_->allreduce->name();
  metrics.codec = state_->allreduce->coding();
  return metrics;
}

bool Reducer::prepare(std::optional<ExternalPrice> measured, std::uint64_t step_values) {
  state_->unsent.check_sound();
  if (state_->is_prepared) return next_is_external();
  PhaseTimer timer(options_.trace, "reducer");
  state_->log.begin(comm_, steps() + 1);
  review();
  agree("step()");
  if (state_->is_calibration_due())
    state_->use_profile(state_->log.uncounted(comm_, [&] {
      return calibrate(comm_, {.most_bytes = most_measured(
                                   static_cast<double>(std::max<std::uint64_t>(n_, step_values)), comm_.size()),
                               .cpu = options_.cpu,
                               .external_dense = measured});
    }));
  state_->log.last.times = {.exchange = timer.lap("agree")};
  state_->is_prepared = true;
  return next_is_external();
}

// Preset auto: collective when it is due, which depends on the number of steps alone. It runs between two steps,
// because the caller still looks at the results of the last one after it.
void Reducer::review() {
  if (!state_->tuner || comm_.size() == 1 || !state_->tuner->is_review_due()) return;
  // The shortest time counts: the rank that came last waited for nobody.
  Tuner::Summary summary = state_->tuner->summary();
  summary[0] = -summary[0];
  allreduce_small(comm_, std::span<double>(summary), Reduction::max, work_);
  summary[0] = -summary[0];
  if (state_->tuner->review(summary)) state_->adopt_choice();
}

template <class Act>
void Reducer::guard(const Act& act) {
  try {
    act();
  } catch (const SumOverflow&) {
    state_->unsent.spoil(false);  // on every rank: all are in step, and can load() or forget()
    throw;
  } catch (...) {
    // The ranks are no longer in step. This rank may hold a residual with NaN in it, or entries that left owner memory
    // and never arrived: no step can continue from that.
    fail_external();
    throw;
  }
}

Update Reducer::step(Gradient gradient, float scale) { return step(gradient, scale, Note{}); }
Update Reducer::step(Gradient gradient, float scale, const Note& note) {
  Span span(options_.trace, "step", "reducer");
  require_closed("step");
  if (!begin_step(gradient, scale, note)) return finish({.sparse = {}, .skipped = true}, span);
  guard([&] {
    synchronise(gradient, scale);
    settle(is_dense_step());
  });
  is_added_ = false;
  count_step();
  return finish(last_update(), span);
}

Update Reducer::last_update() const { return {{state_->outcome.update.idx, mean_}, dense_mean_}; }

// False: all ranks leave the step out.
bool Reducer::begin_step(Gradient gradient, float scale, const Note& note) {
  prepare();
  state_->is_prepared = false;
  PhaseTimer timer(options_.trace, "reducer");
  const StepInput input{gradient, scale,   n_,   *options_.device, options_.nan_policy,
                        work_,    steps(), note, &state_->check};
  if (fits_on_all_ranks(comm_, input, timer, state_->log.last.times)) return true;
  state_->selection.clear();
  return false;
}

bool Reducer::is_dense_step() const { return state_->allreduce->is_dense() || state_->density.is_dense(); }

void Reducer::synchronise(Gradient gradient, float scale) {
  if (is_dense_step())
    dense_step(gradient, scale, state_->allreduce->is_dense() ? *state_->allreduce : *dense_);
  else
    sparse_step(gradient, scale);
}

void Reducer::sparse_step(Gradient gradient, float scale) {
  const std::size_t k = state_->density.entries();
  state_->log.last.k = k;
  if (gpu_steps_) {
    PhaseTimer timer(options_.trace, "reducer");
    gpu_steps_->make_step(gradient, scale, *options_.exchange);
    state_->log.last.times.exchange += timer.lap("exchange", {{"gathered", state_->outcome.update.size()}});
  } else {
    select_and_exchange(gradient, scale, k);
  }
  mean_.resize(state_->outcome.update.size());
  divide(state_->outcome.update.val, state_->setting.divisor, mean_);
  dense_mean_.clear();
}

// The second half of a step: the accumulator becomes the residual of the next one.
void Reducer::settle(bool is_dense) {
  PhaseTimer timer(options_.trace, "reducer");
  Residual& residual = state_->unsent.residual();
  if (is_dense) {
    settle_dense(residual, state_->outcome);
    state_->unsent.set_may_exist(!state_->outcome.dense_returned.empty());
  } else if (!gpu_steps_) {
    state_->rule->settle(residual, state_->selection, state_->outcome);
  }
  state_->log.last.times.settle = timer.lap("settle");
}

void Reducer::select_and_exchange(Gradient gradient, float scale, std::size_t k) {
  PhaseTimer timer(options_.trace, "reducer");
  const Device& device = *options_.device;
  Residual& residual = state_->unsent.residual();
  SparseVector& selection = state_->selection;
  StepTimes& times = state_->log.last.times;
  state_->leave_gpu();
  if (options_.decay != 1 && !is_added_) state_->unsent.multiply(options_.decay);
  state_->unsent.set_may_exist(true);
  mark();
  if (is_added_) gradient = {};
  state_->selector->select(device, residual.begin(gradient, scale), k, selection, state_->allreduce->most_selected(k));
  residual.accumulated();
  is_added_ = true;
  times.select = timer.lap("select", {{"k", k}, {"selected", selection.size()}});
  state_->allreduce->run(comm_, device, {.selection = selection, .gradient = gradient}, n_, k, state_->outcome);
  leave_out(state_->outcome.held, selection);
  if (state_->density.adapts()) compare_shares();
  times.exchange += timer.lap("exchange", {{"gathered", state_->outcome.update.size()}});
}

// Adaptive density: collective when it is due, which depends on the number of sparse steps alone.
// COST: every `interval` steps a pass over n that only reads, and ceil(log2 P) messages of 24 B.
void Reducer::compare_shares() {
  AdaptiveDensity& adaptive = state_->density.adaptive();
  const bool is_due = adaptive.is_due();
  adaptive.count();
  if (!is_due) return;
  const SentShare mine = sent_share(*options_.device, state_->unsent.values(), state_->selection);
  std::array<std::uint64_t, 2> sum = {mine.units, mine.ranks};
  allreduce_small(comm_, std::span<std::uint64_t>(sum), Reduction::sum, work_);
  const SentShare all{sum[0], sum[1]};
  state_->log.last.share = all.mean();
  adaptive.observe(all);
}

// Sends all unsent values too: nothing is left afterwards, or rounding errors only.
void Reducer::dense_step(Gradient gradient, float scale, Allreduce& exchange) {
  PhaseTimer timer(options_.trace, "reducer");
  const Device& device = *options_.device;
  Residual& residual = state_->unsent.residual();
  Outcome& outcome = state_->outcome;
  StepMetrics& log = state_->log.last;
  log.k = n_;
  state_->unsent.fold_memory();
  state_->unsent.set_may_exist(true);  // until settle(): roll_back() leaves the accumulator
  mark();
  device.accumulate(residual.begin(is_added_ ? Gradient{} : gradient, scale));
  residual.accumulated();
  is_added_ = true;
  state_->selection.clear();
  log.times.select = timer.lap("select");
  exchange.run(comm_, device, {.selection = {}, .dense = residual.values(), .gradient = gradient, .checks_sum = true},
               n_, k_, outcome);
  log.times.exchange += timer.lap("exchange", {{"gathered", n_}});
  mean_.clear();
  dense_mean_.resize(outcome.dense_update.size());
  if (!divide(outcome.dense_update, state_->setting.divisor, dense_mean_))
    fail_overflow(exchange.name(), first_nonfinite(outcome.dense_update));
}

Update Reducer::flush() {
  Span span(options_.trace, "flush", "reducer");
  require_closed("flush");
  prepare_flush();
  state_->is_prepared = false;
  guard([&] {
    dense_step({}, 1.0F, *dense_);  // floats, so that nothing is left
    settle(true);
  });
  is_added_ = false;
  return finish(last_update(), span);
}

// Preset auto learns from the times of steps after the warm-up.
void Reducer::count_step() {
  const bool is_warm = state_->density.is_warm();
  state_->density.count_step();
  state_->check.note(last_update(), steps());
  if (!is_warm || !state_->tuner || state_->setting.P == 1 || !options_.choice.review) return;
  const StepTimes& times = state_->log.last.times;
  state_->tuner->observe(times.select + times.exchange + times.settle, static_cast<double>(state_->outcome.arrived),
                         static_cast<double>(state_->outcome.merged), state_->outcome.refreshed);
}

Update Reducer::finish(const Update& update, Span& span) {
  StepMetrics& log = state_->log.last;
  state_->log.end(steps(), state_->selection, update, comm_);
  log.refreshed = !update.skipped && state_->outcome.refreshed;
  if (gpu_steps_ && !update.skipped && !update.is_dense()) log.selected = gpu_steps_->sent();
  span.arg("step", log.step);
  span.arg("n", n_);
  span.arg("k", log.k);
  span.arg("selected", log.selected);
  span.arg("gathered", log.gathered);
  span.arg("messages", log.messages);
  span.arg("bytes", log.wire_bytes);
  span.arg("preset", state_->allreduce->name());
  return update;
}

// ---- Steps in two halves ----
//
// The exchange changes the accumulator once, in the pass that adds the gradient, and that stays. Everything else that
// it changes is small (selector, thresholds, cuts, counters: copied before) or sparse (owner memory: an undo list). The
// residual rule settles at the commit. COST: O(k) per step.

void Reducer::require_closed(std::string_view what) const {
  require(!is_open(), "reducer: ", what, " while a proposed step is open: commit() or roll_back() comes first");
}

void Reducer::mark() {
  if (is_open()) state_->mark();
}

Update Reducer::propose(Gradient gradient, float scale) {
  Span span(options_.trace, "propose", "reducer");
  require_closed("propose()");
  require(!options_.exchange, "reducer: propose() with options.exchange, but steps on the GPU cannot be taken back");
  state_->unsent.check_sound();
  open_ = Open::half;
  try {
    if (!begin_step(gradient, scale, {})) {
      open_ = Open::skipped;
      return finish({.sparse = {}, .skipped = true}, span);
    }
  } catch (const UsageError&) {
    open_ = Open::no;  // on all ranks; nothing has changed
    throw;
  }
  return complete(span, [&] { synchronise(gradient, scale); });
}

Update Reducer::propose_flush() {
  Span span(options_.trace, "propose flush", "reducer");
  require_closed("propose_flush()");
  require(!options_.exchange, "reducer: propose_flush() with options.exchange, but steps on the GPU are final");
  require(!is_added_, "reducer: propose_flush() after roll_back(), but the step that was taken back comes first");
  open_ = Open::half;
  is_flush_ = true;
  try {
    prepare_flush();
  } catch (const UsageError&) {
    open_ = Open::no;  // on all ranks; nothing has changed
    is_flush_ = false;
    throw;
  }
  state_->is_prepared = false;
  return complete(span, [&] { dense_step({}, 1.0F, *dense_); });
}

template <class Exchange>
Update Reducer::complete(Span& span, const Exchange& exchange) {
  try {
    exchange();
  } catch (const SumOverflow&) {
    throw;  // on all ranks, which are in step
  } catch (...) {
    comm_.kill();
    throw;
  }
  open_ = Open::whole;
  return finish(last_update(), span);
}

void Reducer::commit() {
  require(open_ == Open::whole || open_ == Open::skipped, "reducer: commit() without a step that propose() completed");
  const bool is_skipped = open_ == Open::skipped;
  open_ = Open::no;
  if (is_skipped) return;
  settle(is_flush_ || is_dense_step());
  state_->keep();
  is_added_ = false;
  if (!std::exchange(is_flush_, false)) count_step();
  state_->log.last.step = steps();
}

void Reducer::roll_back() {
  require(is_open(), "reducer: roll_back() without propose()");
  open_ = Open::no;
  state_->take_back();
  if (std::exchange(is_flush_, false)) is_added_ = false;  // it has no gradient
}

std::unique_ptr<Reducer> Reducer::moved_to(Communicator& comm) {
  require_closed("moved_to()");
  require(!options_.exchange, "reducer: moved_to() with options.exchange, which belongs to the ranks of before");
  state_->unsent.check_sound();
  std::unique_ptr<Reducer> moved(new Reducer(comm, n_, options_, role_));
  if (state_->unsent.may_exist()) {
    Uninitialised<float> values(n_);
    state_->unsent.take(values);
    moved->state_->unsent.give(values);
  }
  moved->state_->density = state_->density;
  moved->is_added_ = is_added_;
  return moved;
}

// ---- Unsent values that the caller moves, and dense steps that the caller makes ----

void Reducer::take_unsent(std::span<float> out) {
  require_closed("take_unsent");
  state_->unsent.take(out);
}

void Reducer::give_unsent(std::span<const float> values) {
  require_closed("give_unsent");
  state_->unsent.give(values);
}

void Reducer::forget() {
  require_closed("forget");
  is_added_ = false;
  state_->unsent.clear();
}

// Before the first exchange: all ranks have the same options and make the same call.
void Reducer::agree(std::string_view call) { state_->allreduce->agree(comm_, n_, k_, settings_, call); }

void Reducer::prepare_flush() {
  state_->unsent.check_sound();
  state_->log.begin(comm_, steps());
  agree("flush()");
  if (options_.nan_policy != NanPolicy::local)
    agree_on_success(comm_, work_, [] {}, {Call::Kind::flush, steps(), state_->check.is_on()});
  state_->is_prepared = true;
}

// Decides as step() does.
bool Reducer::next_is_external() const {
  if (!options_.choice.external_dense) return false;
  return state_->allreduce->is_dense() ? state_->allreduce->codec().lossless() : state_->density.is_dense();
}

Update Reducer::end_external(const ExternalStep& made) {
  require(state_->is_prepared, "reducer: end_external() without prepare()");
  require(made.skipped || !state_->unsent.may_exist(), "reducer: end_external(), but take_unsent() was not called");
  state_->is_prepared = false;
  state_->selection.clear();
  state_->outcome = {};
  mean_.clear();
  dense_mean_.clear();
  StepMetrics& log = state_->log.last;
  log.times.exchange += made.seconds;
  log.k = n_;
  if (!made.skipped && !made.is_flush) count_step();
  const Update update{.sparse = {}, .dense = {}, .skipped = made.skipped};
  state_->log.end(steps(), {}, update, comm_);
  log.wire_bytes += made.bytes;
  log.is_dense = !made.skipped;
  log.gathered = made.skipped ? 0 : n_;
  return update;
}

void Reducer::fail_external() {
  state_->unsent.spoil(comm_.size() > 1);
  comm_.kill();
}

// ---- Saved states ----

void Reducer::write(StateWriter& state) const {
  require_closed("save()");
  state_->write(state);
}

void Reducer::restore(const std::function<std::unique_ptr<ReducerState>()>& make) {
  require_closed("load()");
  agree("load()");
  std::unique_ptr<ReducerState> state;
  agree_on_success(comm_, work_, [&] { state = make(); },
                   {.kind = Call::Kind::load, .has_hash = state_->check.is_on()});
  const AdaptiveDensity::Words k = state->density.adaptive().words();
  std::array<std::uint64_t, 5> least = {state->density.steps(), state->source, k[0], k[1], k[2]}, most = least;
  allreduce_small(comm_, std::span<std::uint64_t>(least), Reduction::min, work_);
  allreduce_small(comm_, std::span<std::uint64_t>(most), Reduction::max, work_);
  require(least[0] == most[0], "state: the ranks' states were saved after different numbers of steps, ", least[0],
          " to ", most[0]);
  require(least == most, "state: the ranks were given different states");
  state->outcome = std::move(state_->outcome);  // the caller may still look at the last update
  state_ = std::move(state);
  is_added_ = false;
}

void Reducer::load(std::span<const std::byte> bytes) {
  restore([&] {
    auto state = std::make_unique<ReducerState>(state_->setting, state_->tuner);
    state->read(bytes);
    return state;
  });
}

// Either every rank takes its own state as it is, or all merge.
void Reducer::load_all(std::size_t count, const ReadState& read) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  agree("load_all()");
  if (all_own(comm_, work_, count, [&] { return state_->is_own(read(rank)); })) return load(read(rank));
  restore([&] {
    StateMerge merge(*state_, count);
    for (std::size_t r = 0; r < count; ++r) merge.add(read(r));
    return merge.finish();
  });
}

}  // namespace oktopk
