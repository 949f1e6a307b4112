// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/reducer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/inspect.h"
#include "oktopk/reduce/reducer_auto.h"

namespace oktopk {
namespace {

struct NanPolicyName {
  NanPolicy policy;
  std::string_view name;
};
constexpr std::array<NanPolicyName, 3> kNanPolicies = {
    {{NanPolicy::error, "error"}, {NanPolicy::skip, "skip"}, {NanPolicy::local, "local"}}};

AllreduceOptions dense_options(const ReducerOptions& options) {
  AllreduceOptions dense;
  dense.dense = options.allreduce.dense;
  return dense;
}

// False if a sum is not finite: looking here spares a pass.
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

}  // namespace

std::string_view to_string(NanPolicy policy) { return kNanPolicies[static_cast<std::size_t>(policy)].name; }

NanPolicy find_nan_policy(std::string_view name) { return find_row(kNanPolicies, "NaN policy", name).policy; }

std::size_t entries_per_step(Index n, const ReducerOptions& options) {
  if (options.k == 0) {
    require(options.density > 0 && options.density <= 1, "reducer: density = ", options.density,
            ", but it must be in (0, 1]");
    return entries_at(options.density, n);
  }
  require(options.k <= n, "reducer: k = ", options.k, ", but k must be in 1..n with n = ", n);
  return options.k;
}

// As make_parts() and the algorithm resolve them.
std::string describe(const ReducerOptions& options, Index n) {
  check_schedule(options.warmup);
  require(options.decay > 0 && options.decay <= 1, "reducer: decay = ", options.decay, ", but it must be in (0, 1]");
  require(options.divisor >= 0, "reducer: divisor = ", options.divisor, ", but it must be positive");
  std::ostringstream text;
  AllreduceOptions o = options.allreduce;
  if (options.preset == "auto") {
    text << describe_auto(options);
  } else {
    const Preset& preset = find_preset(options.preset);
    o = make_allreduce(preset, o)->options();
    const auto selector = make_selector(options.selector.value_or(default_selector(preset, o)), selector_options(o, 1));
    text << "preset " << preset.name << ", selector " << selector->name() << ", codec " << to_string(o.codec)
         << ", skips " << o.skips << ", residual " << to_string(o.residual);
  }
  text << ", k " << digits(entries_per_step(n, options)) << ", tau " << digits(o.tau) << ", thresholds "
       << to_string(o.thresholds) << ", tau' " << digits(o.tau_prime) << ", bucket " << digits(o.bucket)
       << ", balance trigger " << digits(o.balance_trigger) << ", dense schedule " << digits(static_cast<int>(o.dense))
       << ", decay " << digits(options.decay) << ", NaN policy " << to_string(options.nan_policy) << ", warm-up";
  for (const DensityStage& stage : options.warmup) text << ' ' << digits(stage.steps) << " x " << digits(stage.density);
  if (options.divisor > 0) text << ", divisor " << digits(options.divisor);
  text << describe(options.adaptive);
  require(options.adaptive.target_share == 0 || options.preset != "dense",
          "reducer: an adaptive density with preset dense, which sends everything");
  return text.str();
}

std::unique_ptr<Communicator> trace_messages(Communicator& comm, const ReducerOptions& options) {
  if (!options.trace || !options.trace_messages) return nullptr;
  return std::make_unique<TracingCommunicator>(comm, options.trace);
}

Reducer::Reducer(Communicator& comm, Index n, const ReducerOptions& options)
    : traced_(trace_messages(comm, options)),
      comm_(traced_ ? *traced_ : comm),
      options_(options),
      k_(entries_per_step(n, options)),
      adaptive_(options.adaptive, n, k_),
      device_(make_cpu_device(options.cpu)),
      dense_(make_allreduce(find_preset("dense"), dense_options(options))),
      residual_(*device_, n) {
  options_.choice.allreduce = options.allreduce;
  options_.trace = options.trace.on_rank(comm.rank());
  if (options.preset == "auto") tuner_ = make_tuner();
  replace(make_parts(tuner_));
  allreduce_->check_ranks(comm.size());
  description_ = describe(options, n);
  // No part of the description: a state may go on with the caller's dense or with ours.
  fingerprint_ = hash_text(description_ + (options.choice.external_dense ? ", external dense" : ""));
}

Reducer::Parts Reducer::make_parts(const std::optional<Tuner>& tuner) const {
  const Preset& preset = find_preset(tuner ? tuner->choice().method.preset : options_.preset);
  Parts parts;
  parts.adaptive = AdaptiveDensity(options_.adaptive, n(), k_);
  parts.tuner = tuner;
  parts.selector = make_selector(options_.selector.value_or(default_selector(preset, options_.allreduce)),
                                 selector_options(options_.allreduce, comm_.size()));
  parts.allreduce = make_allreduce(
      preset, tuner ? tuner->choice().method.options(fitting(preset, options_.allreduce)) : options_.allreduce);
  return parts;
}

// The exchange and all that belongs to it.
void Reducer::replace(Parts&& parts) {
  tuner_ = std::move(parts.tuner);
  selector_ = std::move(parts.selector);
  allreduce_ = std::move(parts.allreduce);
  rule_ = &residual_rule(allreduce_->options().residual);
  selection_.clear();
  last_ = {};
  is_prepared_ = false;
}

template <class Act>
void Reducer::guard(const Act& act) {
  try {
    act();
  } catch (const SumOverflow&) {
    spoilt_ = true;  // on every rank: all are in step, and can load() or forget()
    throw;
  } catch (...) {
    // Whatever it was: the ranks are no longer in step, and what this one holds (a residual with
    // NaN in it, entries that left owner memory and never arrived) is no state to go on from.
    spoilt_ = true;
    dead_ = comm_.size() > 1;
    comm_.kill();
    throw;
  }
}

Update Reducer::step(Gradient gradient, float scale) { return step(gradient, scale, {}); }

Update Reducer::step(Gradient gradient, float scale, Note note) {
  Span span(options_.trace, "step", "reducer");
  prepare();
  is_prepared_ = false;
  PhaseTimer timer(options_.trace, "reducer");
  if (note.severity == Severity::fine) note = inspect(gradient, scale);
  times_.check = timer.lap("check");
  if (options_.nan_policy != NanPolicy::local) note = compare_notes(comm_, note, work_);
  times_.exchange += timer.lap("notes");
  if (note.severity != Severity::fine) {
    require(options_.nan_policy == NanPolicy::skip && note.severity == Severity::skippable, "reducer: ", note.text);
    selection_.clear();
    return finish({.sparse = {}, .skipped = true}, span);
  }
  const double density = density_at(options_.warmup, steps_, 0);
  guard([&] { synchronise(gradient, scale, density); });
  ++steps_;
  if (tuner_ && density == 0) observe();
  return finish(update(), span);
}

// Notes what the step did.
Update Reducer::finish(const Update& update, Span& span) {
  end_metrics(update);
  span.arg("step", last_.step);
  span.arg("n", n());
  span.arg("k", last_.k);
  span.arg("selected", last_.selected);
  span.arg("gathered", last_.gathered);
  span.arg("messages", last_.messages);
  span.arg("bytes", last_.wire_bytes);
  span.arg("preset", allreduce_->name());
  return update;
}

void Reducer::check_sound() const {
  if (spoilt_) fail<CommError>("reducer: an earlier step failed half-way: ", way_out(dead_));
}

Update Reducer::update() const { return {{outcome_.update.idx, mean_}, dense_mean_}; }

// Density 0: the warm-up is over.
void Reducer::synchronise(Gradient gradient, float scale, double density) {
  if (allreduce_->is_dense()) {
    dense_step(gradient, scale, *allreduce_);
  } else if (density == 1) {
    dense_step(gradient, scale, *dense_);
  } else {
    sparse_step(gradient, scale, density);
  }
}

// What makes this rank's input unfit for a step. With NanPolicy local whatever is not finite is
// found where it was added; a rank alone loses no message by looking first.
Note Reducer::inspect(Gradient gradient, float scale) const {
  const bool looks = options_.nan_policy != NanPolicy::local || comm_.size() == 1;
  return looks ? inspect_values(*device_, gradient, scale, n()) : inspect_size(gradient, scale, n());
}

void Reducer::sparse_step(Gradient gradient, float scale, double density) {
  PhaseTimer timer(options_.trace, "reducer");
  const std::size_t k = adapts(density) ? adaptive_.k() : density > 0 ? entries_at(density, n()) : k_;
  last_.k = k;
  if (options_.decay != 1) {
    residual_.multiply(options_.decay);
    allreduce_->scale_memory(*device_, options_.decay);
  }
  has_unsent_ = true;
  selector_->select(*device_, residual_.begin(gradient, scale), k, selection_, Checked::yes);
  residual_.accumulated();
  times_.select = timer.lap("select", {{"k", k}, {"selected", selection_.size()}});
  if (adapts(density)) steer_density();
  allreduce_->run(comm_, *device_, {.selection = selection_, .is_finite = true}, n(), k, outcome_);
  times_.exchange += timer.lap("exchange", {{"gathered", outcome_.update.size()}});
  rule_->settle(residual_, selection_, outcome_);
  mean_.resize(outcome_.update.size());
  divide(outcome_.update.val, divisor(), mean_);
  dense_mean_.clear();
  times_.settle = timer.lap("settle");
}

// Everything that is unsent goes along: nothing is left afterwards, or rounding errors only.
void Reducer::dense_step(Gradient gradient, float scale, Allreduce& exchange) {
  PhaseTimer timer(options_.trace, "reducer");
  last_.k = n();
  fold_memory();
  device_->accumulate(residual_.begin(gradient, scale));
  residual_.accumulated();
  const auto acc = residual_.values();
  const std::size_t bad = device_->first_nonfinite(acc);
  if (bad < acc.size()) fail<UsageError>("reducer: ", describe_nonfinite(gradient, bad));
  selection_.clear();
  times_.select = timer.lap("select");
  exchange.run(comm_, *device_, {.selection = {}, .dense = acc, .is_finite = true, .checks_sum = true}, n(), k_,
               outcome_);
  times_.exchange += timer.lap("exchange", {{"gathered", n()}});
  mean_.clear();
  dense_mean_.resize(outcome_.dense_update.size());
  if (!divide(outcome_.dense_update, divisor(), dense_mean_))
    fail_overflow(exchange.name(), device_->first_nonfinite(outcome_.dense_update));
  settle_dense(residual_, outcome_);
  has_unsent_ = !outcome_.dense_returned.empty();
  times_.settle = timer.lap("settle");
}

Update Reducer::flush() {
  Span span(options_.trace, "flush", "reducer");
  prepare_flush();
  is_prepared_ = false;
  guard([&] { dense_step({}, 1.0F, *dense_); });  // floats, so that nothing is left
  return finish(update(), span);
}

Prediction Reducer::predict(const Problem& problem) const {
  Prediction prediction = allreduce_->predict(problem);
  if (adaptive_.is_on()) {
    prediction.expected += share_cost(problem.P, options_.adaptive.interval);
    prediction.bound += share_cost(problem.P, 1);
  }
  if (options_.nan_policy == NanPolicy::local) return prediction;
  prediction.expected += notes_cost(problem.P);
  prediction.bound += notes_cost(problem.P);
  return prediction;
}

}  // namespace oktopk
