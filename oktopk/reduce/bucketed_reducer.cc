// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/bucketed_reducer.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/reduce/fusion.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/ordered_worker.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/step_log.h"

namespace oktopk {
namespace {

// options.k is the whole model's.
ReducerOptions options_of(const Bucket& bucket, Index n, ReducerOptions options) {
  if (options.k == 0) return options;
  options.k = share_of_k(options.k, n, bucket.range);
  return options;
}

std::vector<Index> checked_sizes(const std::vector<std::uint64_t>& tensors) {
  require(!tensors.empty(), "bucketed reducer: no tensors were given");
  std::uint64_t n = 0;
  for (const std::uint64_t size : tensors) n += std::min<std::uint64_t>(size, std::uint64_t{1} << 32U);  // no overflow
  checked_size("bucketed reducer", n);
  return {tensors.begin(), tensors.end()};
}

std::string describe(std::span<const Index> tensors, std::span<const Bucket> buckets) {
  std::ostringstream text;
  text << kBucketedState;
  for (const Index size : tensors) text << ' ' << size;
  text << ", buckets from";
  for (const Bucket& bucket : buckets) text << ' ' << bucket.first;
  return text.str();
}

// The buckets' events, on the exchanging thread's row.
ReducerOptions on_exchanging_row(ReducerOptions options) {
  options.trace = options.trace.on_thread(options.trace.thread + 1);
  return options;
}

void append(SparseVector& flat, Index base, CooView entries) {
  const std::size_t before = flat.size();
  flat.append(entries);
  for (std::size_t j = before; j < flat.size(); ++j) flat.idx[j] += base;
}

}  // namespace

BucketedReducer::BucketedReducer(Communicator& comm, const std::vector<std::uint64_t>& tensors,
                                 const ReducerOptions& options, const FusionOptions& fusion)
    : tensors_(checked_sizes(tensors)),
      traced_(trace_messages(comm, on_exchanging_row(options))),
      comm_(traced_ ? *traced_ : comm),
      nan_policy_(options.nan_policy),
      trace_(options.trace.on_rank(comm.rank())),
      buckets_(plan_buckets(tensors_, fusion, fusion_model(tensors_, options, comm.size(), fusion))),
      n_(buckets_.front().range.end),
      description_(describe(tensors_, buckets_)),
      bucket_of_(tensors_.size()),
      updates_(buckets_.size()),
      snapshots_(buckets_.size()),
      log_(std::make_unique<StepLog>()),
      worker_(std::make_unique<OrderedWorker>()) {
  comm.require_any_thread();
  check_used(options);
  entries_per_step(n_, options);  // k <= n
  ReducerOptions each = on_exchanging_row(options);
  each.device = device_of(options);
  each.trace_messages = false;  // comm_ does
  if (trace_) trace_.trace->name_thread(each.trace.thread, "exchange");
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    const auto values = static_cast<Index>(bucket.range.width());
    reducers_.emplace_back(new Reducer(comm_, values, options_of(bucket, n_, each), Reducer::Role{}));
    each.checked = {};  // the first bucket does
    std::fill(bucket_of_.begin() + static_cast<std::ptrdiff_t>(bucket.first),
              bucket_of_.begin() + static_cast<std::ptrdiff_t>(bucket.end), b);
  }
}

BucketedReducer::~BucketedReducer() {
  if (worker_->is_forked()) {
    leak(std::move(worker_));
    return;
  }
  if (worker_->is_busy() && comm_.can_kill_waits()) comm_.kill();  // otherwise its exchange ends by the timeout
  if (!worker_->stop()) comm_.kill();
}

std::size_t BucketedReducer::exchanged() const { return worker_->done(); }

void BucketedReducer::begin(Gradient gradient, float scale) {
  const Note note = inspect_size(gradient, 1, n_);  // refused by the first bucket, on all ranks
  if (note.severity != Severity::fine) gradient = {};
  launch([this, gradient, scale, note](std::size_t b) {
    const Range range = buckets_[b].range;
    const Gradient mine = gradient.empty() ? gradient : gradient.subspan(range.begin, range.width());
    return reducers_[b]->step(mine, scale, note);
  });
}

void BucketedReducer::launch(Exchange exchange) {
  require(!worker_->is_forked(), "bucketed reducer: this process was forked from rank ", comm_.rank(),
          ": make the BucketedReducer in the process that uses it");
  if (!broken_.empty()) fail<CommError>("bucketed reducer: an earlier step failed for good: ", broken_);
  const std::lock_guard lock(mutex_);
  require(!in_flight_, "bucketed reducer: a step is in flight: wait() ends it");
  in_flight_ = true;
  log_->begin(comm_, reducers_.front()->steps() + 1);
  is_ready_.assign(tensors_.size(), 0);
  exchange_ = std::move(exchange);
  std::vector<std::size_t> tensors;
  for (const Bucket& bucket : buckets_) tensors.push_back(bucket.end - bucket.first);
  worker_->start(std::move(tensors), [this](std::size_t b) { return run(b); });
}

void BucketedReducer::ready(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  require(in_flight_, "ready: no step is in flight: begin() starts one");
  require(tensor < tensors_.size(), "ready: tensor ", tensor, ", but there are ", tensors_.size());
  require(is_ready_[tensor] == 0, "ready: tensor ", tensor, " was ready before");
  is_ready_[tensor] = 1;
  worker_->release(bucket_of_[tensor]);
}

bool BucketedReducer::can_undo() const { return nan_policy_ != NanPolicy::local || comm_.size() == 1; }

// On the exchanging thread. A refusal that all ranks share leaves them in step, at the same bucket.
bool BucketedReducer::run(std::size_t bucket) {
  Span span(trace_.on_thread(trace_.thread + 1), "bucket", "bucketed");
  span.arg("bucket", bucket);
  span.arg("first tensor", buckets_[bucket].first);
  span.arg("tensors", buckets_[bucket].end - buckets_[bucket].first);
  try {
    agree(kStepCall);
    share_profile(bucket);
    if (can_undo() && bucket + 1 < buckets_.size()) state_of(*reducers_[bucket]).copy_to(snapshots_[bucket]);
    updates_[bucket] = exchange_(bucket);
    return !updates_[bucket].skipped;
  } catch (const Divergence&) {
    throw;  // by all ranks, before this bucket has changed
  } catch (const UsageError& error) {
    if (!can_undo() && bucket > 0) comm_.kill();
    if (!agreed_ || buckets_.size() == 1) throw;
    const Bucket& at = buckets_[bucket];
    fail<UsageError>("in tensors ", at.first, " to ", at.end - 1, ", from index ", at.range.begin,
                     " on: ", error.what());
  } catch (...) {
    comm_.kill();
    throw;
  }
}

// Preset auto: the profile that the first bucket measured serves all.
void BucketedReducer::share_profile(std::size_t bucket) {
  const std::optional<Tuner>& first = state_of(*reducers_.front()).tuner;
  ReducerState& state = state_of(*reducers_[bucket]);
  if (first && first->is_calibrated() && !state.tuner->is_calibrated()) state.use_profile(first->profile());
}

Update BucketedReducer::wait() {
  {
    const std::lock_guard lock(mutex_);
    require(in_flight_, "wait: no step is in flight: begin() starts one");
    const auto missing = std::ranges::find(is_ready_, 0);
    require(missing == is_ready_.end(), "wait: tensor ", missing - is_ready_.begin(), " is not ready");
  }
  const auto end = [&] {
    const std::lock_guard lock(mutex_);
    in_flight_ = false;
  };
  try {
    const Span span(trace_, "wait", "bucketed");
    worker_->finish();
  } catch (const UsageError& error) {
    if (!can_undo() && exchanged() > 0) broken_ = error.what();
    undo();
    end();
    throw;
  } catch (const std::exception& error) {
    broken_ = error.what();
    end();
    throw;
  }
  end();
  const bool skipped = updates_[exchanged() - 1].skipped;
  if (skipped) undo();
  const Update update = skipped ? Update{.sparse = {}, .skipped = true} : join();
  log_->end(reducers_.front()->steps(), sent_, update, comm_);
  return update;
}

// Takes back the buckets before the one that was refused or skipped.
void BucketedReducer::undo() {
  sent_.clear();
  if (!can_undo()) return;
  for (std::size_t b = 0; b < exchanged(); ++b)
    if (!updates_[b].skipped) state_of(*reducers_[b]).go_back(snapshots_[b]);
}

// Bucket 0 holds the largest indices.
Update BucketedReducer::join() {
  sent_.clear();
  mean_.clear();
  dense_mean_.clear();
  if (buckets_.size() == 1) {
    append(sent_, 0, reducers_[0]->sent());
    return updates_[0];
  }
  // Dense only where all are: what a sparse bucket left out did not arrive, and is no zero.
  bool is_dense = true;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    is_dense = is_dense && (updates_[b].is_dense() || buckets_[b].range.width() == 0);
  if (is_dense) dense_mean_.assign(n_, 0.0F);
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    const Index base = buckets_[b].range.begin;
    append(sent_, base, reducers_[b]->sent());
    if (is_dense)
      updates_[b].for_each([&](Index i, float mean) { dense_mean_[base + i] = mean; });
    else if (updates_[b].is_dense())
      updates_[b].for_each([&](Index i, float mean) { mean_.push_back(base + i, mean); });
    else
      append(mean_, base, updates_[b].sparse);
  }
  return {mean_, dense_mean_};
}

Update BucketedReducer::step(Gradient gradient, float scale) {
  begin(gradient, scale);
  return finish_all();
}

Update BucketedReducer::flush() {
  launch([this](std::size_t b) { return reducers_[b]->flush(); });
  return finish_all();
}

Update BucketedReducer::finish_all() {
  for (std::size_t t = tensors_.size(); t-- > 0;) ready(t);
  return wait();
}

StepMetrics BucketedReducer::metrics() const {
  StepMetrics metrics = log_->metrics(n_, comm_.size(), {}, {});
  metrics.times = times();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const StepMetrics bucket = reducers_[b]->metrics();
    metrics.preset = b == 0 || bucket.preset == metrics.preset ? bucket.preset : "";
    metrics.codec = b == 0 || bucket.codec == metrics.codec ? bucket.codec : "";
    metrics.measured_bytes += bucket.measured_bytes;
    metrics.wire_bytes -= bucket.measured_bytes;  // this log has all messages
    if (b >= exchanged()) continue;               // left out; what was taken back is zero
    metrics.k += bucket.k;
    metrics.refreshed = metrics.refreshed || bucket.refreshed;
  }
  return metrics;
}

void BucketedReducer::check_idle(std::string_view what) const {
  const std::lock_guard lock(mutex_);
  require(!in_flight_, what, ": a step is in flight: wait() ends it");
}

CooView BucketedReducer::sent() const {
  check_idle("sent");
  return sent_;
}

void BucketedReducer::subtract_unsent(std::span<float> x) const {
  check_idle("subtract_unsent");
  require(x.size() == n_, "bucketed reducer: ", x.size(), " values, but n = ", n_);
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    reducers_[b]->subtract_unsent(x.subspan(buckets_[b].range.begin, buckets_[b].range.width()));
}

double BucketedReducer::unsent_norm() const {
  check_idle("unsent_norm");
  double squares = 0;
  for (const auto& reducer : reducers_) squares += std::pow(reducer->unsent_norm(), 2);
  return std::sqrt(squares);
}

StepTimes BucketedReducer::times() const {
  check_idle("times");
  StepTimes sum;
  for (std::size_t b = 0; b < exchanged(); ++b) sum += reducers_[b]->times();
  return sum;
}

// ---- Saved states: one holds those of all buckets ----

void BucketedReducer::write(StateWriter& state) const {
  check_idle("save");
  state.put_text(description_);
  for (const auto& reducer : reducers_) state.put_state([&](StateWriter& inner) { state_of(*reducer).write(inner); });
}

// The states of the buckets, not yet looked into.
std::vector<std::span<const std::byte>> BucketedReducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  require_saver(state, "a BucketedReducer");
  require_same(
      state.take_text(), description_,
      "; the fusion policies search and optimal plan buckets for P ranks: where P may change, take whole, tensor "
      "or size");
  std::vector<std::span<const std::byte>> states;
  for (std::size_t b = 0; b < buckets_.size(); ++b) states.push_back(state.take_view());
  state.finish();
  return states;
}

// Before the first exchange: the same tensors, buckets and calls, on all ranks. The first bucket's Reducer compares
// calls and options whenever a load() has replaced its state.
void BucketedReducer::agree(std::string_view call) {
  if (!agreed_) require_equal(comm_, "bucketed reducer", description_ + ", call " + std::string(call), work_);
  agreed_ = true;
  if (call != kStepCall) reducers_.front()->agree(call);
}

// load(bucket) for all, or for none.
void BucketedReducer::load_buckets(const std::function<void(std::size_t bucket)>& load) {
  std::size_t loaded = 0;
  log_->last = {};
  try {
    for (; loaded < buckets_.size(); ++loaded) {
      state_of(*reducers_[loaded]).copy_to(snapshots_[loaded]);
      load(loaded);
    }
  } catch (const UsageError&) {
    while (loaded-- > 0) state_of(*reducers_[loaded]).go_back(snapshots_[loaded]);
    throw;
  }
  sent_.clear();
}

void BucketedReducer::load(std::span<const std::byte> state) {
  check_idle("load");
  agree("load()");
  std::vector<std::span<const std::byte>> states;
  agree_on_success(comm_, work_, [&] { states = read(state); },
                   {.kind = Call::Kind::load, .has_hash = state_of(*reducers_.front()).check.is_on()});
  load_buckets([&](std::size_t b) { reducers_[b]->load(states[b]); });
}

// Each state is read once, and all buckets take their part of it.
void BucketedReducer::load_all(std::size_t count, const ReadState& read_state) {
  check_idle("load_all");
  agree("load_all()");
  const auto rank = static_cast<std::size_t>(comm_.rank());
  const auto owns = [&] {
    const auto states = read(read_state(rank));
    for (std::size_t b = 0; b < states.size(); ++b)
      if (!state_of(*reducers_[b]).is_own(states[b])) return false;
    return true;
  };
  if (all_own(comm_, work_, count, owns)) return load(read_state(rank));
  std::vector<StateMerge> merges;
  agree_on_success(comm_, work_, [&] {
    for (const auto& reducer : reducers_) merges.emplace_back(state_of(*reducer), count);
    for (std::size_t r = 0; r < count; ++r) {
      const auto states = read(read_state(r));
      for (std::size_t b = 0; b < states.size(); ++b) merges[b].add(states[b]);
    }
  });
  load_buckets([&](std::size_t b) { reducers_[b]->restore([&] { return merges[b].finish(); }); });
}

}  // namespace oktopk
