// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer.h"

#include <array>
#include <bit>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/step_log.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

AllreduceOptions dense_options(const ReducerOptions& options) {
  AllreduceOptions dense;
  dense.dense = options.allreduce.dense;
  return dense;
}

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
    : n_(checked_size("reducer", n)),
      traced_(trace_messages(comm, options)),
      comm_(traced_ ? *traced_ : comm),
      options_(options),
      k_(entries_per_step(n_, options)),
      description_(describe(options, n_)),
      // No part of the description: a state may continue with the caller's dense or with ours.
      settings_(description_ + (options.choice.external_dense ? ", external dense" : "")),
      dense_(make_allreduce(find_preset("dense"), dense_options(options))),
      outcome_(std::make_unique<Outcome>()),
      log_(std::make_unique<StepLog>()) {
  options_.trace = options.trace.on_rank(comm.rank());
  options_.device = device_of(options);
  std::optional<Tuner> tuner;
  if (options.preset == "auto") tuner = make_tuner(options_, n_, comm.size(), options.profile.value_or(Profile{}));
  state_ = std::make_unique<ReducerState>(ReducerSetting{n_, comm.rank(), comm.size(), options_, description_}, tuner);
  state_->allreduce->check_ranks(comm.size());
}

Reducer::~Reducer() = default;

Unsent& Reducer::unsent() { return state_->unsent; }
const Unsent& Reducer::unsent() const { return state_->unsent; }
DensityPlan& Reducer::density() { return state_->density; }
const DensityPlan& Reducer::density() const { return state_->density; }
const Tuner* Reducer::tuner() const { return state_->tuner ? &*state_->tuner : nullptr; }
const Allreduce& Reducer::allreduce() const { return *state_->allreduce; }
const Outcome& Reducer::outcome() const { return *outcome_; }
std::span<const float> Reducer::residual() const { return unsent().values(); }
OwnerMemory Reducer::memory() const { return unsent().memory(); }
std::uint64_t Reducer::steps() const { return density().steps(); }
StepTimes Reducer::times() const { return log_->times; }
void Reducer::forget() { unsent().clear(); }
void Reducer::subtract_unsent(std::span<float> x) const { unsent().subtract_from(x); }
double Reducer::unsent_norm() const { return unsent().norm(); }

StepMetrics Reducer::metrics() const {
  StepMetrics metrics = log_->metrics(n_, comm_.size(), selection_, outcome_->update);
  metrics.preset = allreduce().name();
  return metrics;
}

Prediction Reducer::predict(const Problem& problem) const {
  return with_agreement(allreduce().predict(problem), options_, problem.P, problem.P);
}

// After the exchange was replaced.
void Reducer::clear_results() {
  selection_.clear();
  log_->clear();
  is_prepared_ = false;
}

template <class Act>
void Reducer::guard(const Act& act) {
  try {
    act();
  } catch (const SumOverflow&) {
    unsent().spoil(false);  // on every rank: all are in step, and can load() or forget()
    throw;
  } catch (...) {
    // The ranks are no longer in step. This rank may hold a residual with NaN in it, or entries that left owner memory
    // and never arrived: no step can continue from that.
    fail_external();
    throw;
  }
}

Update Reducer::step(Gradient gradient, float scale) { return step(gradient, scale, Note{}); }

Update Reducer::step(Gradient gradient, float scale, Note note) {
  Span span(options_.trace, "step", "reducer");
  prepare();
  is_prepared_ = false;
  PhaseTimer timer(options_.trace, "reducer");
  if (note.severity == Severity::fine) note = inspect(gradient, scale);
  log_->times.check = timer.lap("check");
  if (options_.nan_policy != NanPolicy::local) note = compare_notes(comm_, note, work_);
  log_->times.exchange += timer.lap("notes");
  if (note.severity != Severity::fine) {
    require(options_.nan_policy == NanPolicy::skip && note.severity == Severity::skippable, "reducer: ", note.text);
    selection_.clear();
    return finish({.sparse = {}, .skipped = true}, span);
  }
  const bool is_warm = density().is_warm();
  guard([&] {
    if (allreduce().is_dense())
      dense_step(gradient, scale, *state_->allreduce);
    else if (density().is_dense())
      dense_step(gradient, scale, *dense_);
    else
      sparse_step(gradient, scale);
  });
  density().count_step();
  if (is_warm) observe();
  return finish({{outcome_->update.idx, mean_}, dense_mean_}, span);
}

// Says why this rank's input is unfit for a step. NanPolicy::local finds values that are not finite where they were
// added; a rank alone saves no message by that, and looks first.
Note Reducer::inspect(Gradient gradient, float scale) const {
  const bool looks = options_.nan_policy != NanPolicy::local || comm_.size() == 1;
  return looks ? inspect_values(*options_.device, gradient, scale, n_) : inspect_size(gradient, scale, n_);
}

void Reducer::sparse_step(Gradient gradient, float scale) {
  PhaseTimer timer(options_.trace, "reducer");
  const Device& device = *options_.device;
  Residual& residual = unsent().residual();
  StepTimes& times = log_->times;
  const std::size_t k = density().entries();
  log_->counts.k = k;
  if (options_.decay != 1) unsent().multiply(options_.decay);
  unsent().set_may_exist(true);
  state_->selector->select(device, residual.begin(gradient, scale), k, selection_);
  residual.accumulated();
  times.select = timer.lap("select", {{"k", k}, {"selected", selection_.size()}});
  if (density().adapts()) compare_shares();
  state_->allreduce->run(comm_, device, {.selection = selection_, .gradient = gradient}, n_, k, *outcome_);
  times.exchange += timer.lap("exchange", {{"gathered", outcome_->update.size()}});
  state_->rule->settle(residual, selection_, *outcome_);
  mean_.resize(outcome_->update.size());
  divide(outcome_->update.val, state_->setting.divisor(), mean_);
  dense_mean_.clear();
  times.settle = timer.lap("settle");
}

// Adaptive density: collective when it is due, which depends on the number of sparse steps alone.
// COST: every `interval` steps a pass over n that only reads, and ceil(log2 P) messages of 24 B.
void Reducer::compare_shares() {
  AdaptiveDensity& adaptive = density().adaptive();
  const bool is_due = adaptive.is_due();
  adaptive.count();
  if (!is_due) return;
  const SentShare mine = sent_share(*options_.device, residual(), selection_);
  std::array<std::uint64_t, 2> sum = {mine.units, mine.ranks};
  allreduce_small(comm_, std::span<std::uint64_t>(sum), Reduction::sum, work_);
  const SentShare all{sum[0], sum[1]};
  log_->counts.share = all.mean();
  adaptive.observe(all);
}

// Sends everything that is unsent too: nothing is left afterwards, or rounding errors only.
void Reducer::dense_step(Gradient gradient, float scale, Allreduce& exchange) {
  PhaseTimer timer(options_.trace, "reducer");
  const Device& device = *options_.device;
  Residual& residual = unsent().residual();
  log_->counts.k = n_;
  unsent().fold_memory();
  device.accumulate(residual.begin(gradient, scale));
  residual.accumulated();
  const auto acc = residual.values();
  selection_.clear();
  log_->times.select = timer.lap("select");
  exchange.run(comm_, device, {.selection = {}, .dense = acc, .gradient = gradient, .checks_sum = true}, n_, k_,
               *outcome_);
  log_->times.exchange += timer.lap("exchange", {{"gathered", n_}});
  mean_.clear();
  dense_mean_.resize(outcome_->dense_update.size());
  if (!divide(outcome_->dense_update, state_->setting.divisor(), dense_mean_))
    fail_overflow(exchange.name(), first_nonfinite(outcome_->dense_update));
  settle_dense(residual, *outcome_);
  unsent().set_may_exist(!outcome_->dense_returned.empty());
  log_->times.settle = timer.lap("settle");
}

Update Reducer::flush() {
  Span span(options_.trace, "flush", "reducer");
  prepare_flush();
  is_prepared_ = false;
  guard([&] { dense_step({}, 1.0F, *dense_); });  // floats, so that nothing is left
  return finish({{outcome_->update.idx, mean_}, dense_mean_}, span);
}

Update Reducer::finish(const Update& update, Span& span) {
  StepMetrics& counts = log_->counts;
  log_->end(steps(), selection_, update, comm_);
  counts.refreshed = !update.skipped && outcome_->refreshed;
  span.arg("step", counts.step);
  span.arg("n", n_);
  span.arg("k", counts.k);
  span.arg("selected", counts.selected);
  span.arg("gathered", counts.gathered);
  span.arg("messages", counts.messages);
  span.arg("bytes", counts.wire_bytes);
  span.arg("preset", allreduce().name());
  return update;
}

}  // namespace oktopk
