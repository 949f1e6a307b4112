// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/node_reducer.h"

#include <algorithm>

#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/reduce/inspect.h"
#include "oktopk/tune/node.h"

namespace oktopk {
namespace {

// Entries inside a node are not worth compressing, and must arrive as they are.
constexpr Codec kInside = {IndexCoding::coo32, ValueCoding::fp32};

// The most entries that a step at k can apply, and that its leader can have sent.
std::size_t most_shared(std::size_t n, std::size_t k, std::size_t nodes) {
  return std::min(n, max_selection(k) * nodes) + std::min(n, max_selection(k));
}

// The leader's part, of a node of `ranks` ranks among `nodes` nodes.
Prediction predict_nodes(const Allreduce& outside, const Problem& problem, int nodes, int ranks) {
  Problem leaders = problem;
  leaders.P = nodes;
  Prediction prediction = outside.predict(leaders);
  if (ranks <= 1) return prediction;
  const bool takes_union = outside.options().residual == ResidualKind::all_sent_cleared;
  const auto applied = [&](double of_union) {
    return problem.gathered > 0 ? problem.gathered : takes_union ? of_union : problem.k;
  };
  const auto inside = [&](double entries) {
    return outside.is_dense() ? node_sum_cost(problem.n, ranks) + node_share_values_cost(problem.n, ranks)
                              : NodeReducer::predict_inside(problem.n, ranks, entries + problem.k);
  };
  prediction.expected += inside(applied(leaders.union_of(nodes)));
  prediction.bound += inside(applied(std::min(problem.n, nodes * problem.k)));
  prediction.bound += Cost{.bytes = 8.0 * ranks};  // regions differ by one value
  return prediction;
}

}  // namespace

NodeReducer::NodeReducer(Communicator& comm, Index n, const ReducerOptions& options, const NodeOptions& node)
    : traced_(trace_messages(comm, options)), comm_(traced_ ? *traced_ : comm), n_(n), options_(options) {
  options_.trace = options.trace.on_rank(comm.rank());
  agree_on_success(comm_, work_, [&] {
    require(node.group >= 0, "node reducer: group = ", node.group,
            ", but it must be 0 (ranks that share a host) or the number of ranks of a node");
    description_ =
        describe(options, n) + ", nodes of " + (node.group == 0 ? std::string("a host") : digits(node.group));
    k_ = entries_per_step(n, options);
    const AdaptiveDensity adaptive(options.adaptive, n, k_);
    most_ = adaptive.is_on() ? adaptive.most() : k_;
    device_ = make_cpu_device(options.cpu);
  });
  fingerprint_ = hash_text(description_);
  find_nodes(comm, node.group);
  if (traced_) trace_nodes();
  if (options.preset == "auto") choose(node.group);
  is_dense_ = make_allreduce(find_preset(options_.preset), options_.allreduce)->is_dense();
  agree_on_success(comm_, work_, [&] {
    if (node_->rank() != 0) return;
    ReducerOptions inner = options_;
    inner.nan_policy = NanPolicy::local;  // all P ranks compare notes, not only the leaders
    inner.divisor = comm_.size();
    inner.trace_messages = false;        // outside_ does
    if (is_dense_) inner.adaptive = {};  // auto's choice: dense has no density
    reducer_ = std::make_unique<Reducer>(*outside_, n, inner);
  });
}

void NodeReducer::check_sound() const {
  if (spoilt_) fail<CommError>("node reducer: an earlier step failed half-way: ", way_out(comm_.size() > 1));
}

// Whatever went wrong: the ranks are no longer in step, in this node and in the others.
template <class Act>
auto NodeReducer::all_or_dead(const Act& act) {
  try {
    return act();
  } catch (...) {
    spoilt_ = true;
    comm_.kill();
    throw;
  }
}

Update NodeReducer::step(Gradient gradient, float scale) {
  check_sound();
  Span span(options_.trace, "step", "node");
  PhaseTimer timer(options_.trace, "node");
  const bool notes = options_.nan_policy != NanPolicy::local;
  const bool looks = notes || comm_.size() == 1;
  Note note = looks ? inspect_values(*device_, gradient, scale, n_) : inspect_size(gradient, scale, n_);
  times_ = {.check = timer.lap("check")};
  if (notes) note = compare_notes(comm_, note, work_);
  times_.exchange = timer.lap("notes");
  if (note.severity != Severity::fine) {
    require(options_.nan_policy == NanPolicy::skip && note.severity == Severity::skippable, "reducer: ", note.text);
    sent_ = {};
    return {.sparse = {}, .skipped = true};
  }
  const double density = density_at(options_.warmup, steps_, 0);
  const Update update = all_or_dead([&] {
    return synchronise(gradient, scale, density == 1 || is_dense_, density > 0 ? entries_at(density, n_) : most_);
  });
  ++steps_;
  span.arg("step", steps_);
  span.arg("n", n_);
  span.arg("gathered", update.size());
  span.arg("leader", leader_of_[static_cast<std::size_t>(comm_.rank())]);
  return update;
}

Update NodeReducer::synchronise(Gradient gradient, float scale, bool dense, std::size_t k) {
  const bool is_alone = node_->size() == 1;
  PhaseTimer summing(options_.trace, "node");
  if (!is_alone) sum_in_node(gradient, scale);
  times_.inside = summing.lap("inside", {{"part", "sum"}});
  Update update;
  if (reducer_) {
    update = is_alone ? reducer_->step(gradient, scale) : step_of_sum();
    const StepTimes outside = reducer_->times();
    times_.check += outside.check;
    times_.select = outside.select;
    times_.exchange += outside.exchange;
    times_.settle = outside.settle;
  }
  PhaseTimer sharing(options_.trace, "node");
  update = share(update, dense, k);
  times_.inside += sharing.lap("inside", {{"part", "share"}});
  return update;
}

// The Reducer would call it a gradient that somebody brought.
Update NodeReducer::step_of_sum() {
  try {
    return reducer_->step(sum_);
  } catch (const UsageError&) {
    const std::size_t bad = device_->first_nonfinite(sum_);
    require(bad == sum_.size(), "node reducer: the sum over the ranks of rank ", comm_.rank(),
            "'s node overflowed at index ", bad, ": scale the gradients down");
    throw;
  }
}

// On the leader, sum_ is the sum. NanPolicy::local has not looked yet.
void NodeReducer::sum_in_node(Gradient gradient, float scale) {
  if (options_.nan_policy == NanPolicy::local) {
    const Note note = inspect_values(*device_, gradient, scale, n_);
    require(note.severity == Severity::fine, "reducer: ", note.text);
  }
  sum_.resize(n_);
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  device_->accumulate({sum_, gradient, scale});
  if (node_sums_by_tree(n_, node_->size())) {
    tree_reduce(*node_, sum_, node_work_);
  } else {
    const auto phases = halving_phases(node_->size(), node_work_);
    reduce_scatter(*node_, sum_, cuts_, phases, node_work_);
    gather_regions(*node_, sum_, cuts_, node_work_);
  }
}

// The leader's update, on all ranks of the node.
Update NodeReducer::share(const Update& update, bool dense, std::size_t k) {
  sent_ = reducer_ ? reducer_->sent() : CooView{};
  if (node_->size() == 1) return update;
  if (!dense) return share_sparse(update, k);
  sum_.resize(n_);
  if (reducer_) std::copy(update.dense.begin(), update.dense.end(), sum_.begin());
  broadcast(*node_, 0, std::as_writable_bytes(std::span(sum_)));
  return {.sparse = {}, .dense = sum_};
}

Update NodeReducer::share_sparse(const Update& update, std::size_t k) {
  const auto tag = static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(&fingerprint_, 1)), steps_));
  const FrameSpec spec{.codec = kInside, .range = {0, n_}, .tag = tag};
  message_.clear();
  if (reducer_) {
    encode_frame(spec, update.sparse, message_);
    encode_frame(spec, reducer_->sent(), message_);
    broadcast_up_to(*node_, 0, message_, message_.size());
    return update;
  }
  const std::size_t entries = most_shared(n_, k, leaders_.size());
  message_.resize(max_frame_bytes(kInside, entries, 2 * std::size_t{n_}, 2));
  const std::size_t size = broadcast_up_to(*node_, 0, message_, 0);
  auto bytes = std::span<const std::byte>(message_).first(size);
  for (SparseVector* part : {&update_, &node_sent_}) {
    part->clear();
    const Frame frame = expect_frame(bytes, spec, leader_of_[static_cast<std::size_t>(comm_.rank())]);
    decode_frame(frame, *part);
    bytes = bytes.subspan(frame.bytes());
  }
  sent_ = node_sent_;
  return {.sparse = update_};
}

Update NodeReducer::flush() {
  check_sound();
  times_ = {};
  return all_or_dead([&] {
    const Update update = reducer_ ? reducer_->flush() : Update{};
    return share(update, true, k_);
  });
}

void NodeReducer::forget() {
  spoilt_ = false;
  if (reducer_) reducer_->forget();
}

void NodeReducer::subtract_unsent(std::span<float> x) const {
  require(x.size() == n_, "reducer: ", x.size(), " values, but n = ", n_);
  if (reducer_) reducer_->subtract_unsent(x);
}

double NodeReducer::unsent_norm() const { return reducer_ ? reducer_->unsent_norm() : 0; }

Cost NodeReducer::predict_inside(double n, int group, double entries) {
  if (group <= 1) return {};
  return node_sum_cost(n, group) + node_share_entries_cost(entries, group);
}

Prediction NodeReducer::predict(const Allreduce& outside, const Problem& problem, int group) {
  return predict_nodes(outside, problem, (problem.P + group - 1) / group, std::min(group, problem.P));
}

Prediction NodeReducer::predict(const Problem& problem) const {
  const auto outside = make_allreduce(find_preset(options_.preset), options_.allreduce);
  Prediction prediction = problem.P == comm_.size()
                              ? predict_nodes(*outside, problem, static_cast<int>(leaders_.size()), largest_)
                              : predict(*outside, problem, largest_);
  if (options_.adaptive.target_share > 0 && !is_dense_) {
    const int nodes =
        problem.P == comm_.size() ? static_cast<int>(leaders_.size()) : (problem.P + largest_ - 1) / largest_;
    prediction.expected += share_cost(nodes, options_.adaptive.interval);
    prediction.bound += share_cost(nodes, 1);
  }
  if (options_.nan_policy == NanPolicy::local) return prediction;
  prediction.expected += notes_cost(problem.P);
  prediction.bound += notes_cost(problem.P);
  return prediction;
}

}  // namespace oktopk
