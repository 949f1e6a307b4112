// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/node_reducer.h"

#include <algorithm>
#include <sstream>

#include "oktopk/allreduce/parts/dense_sum.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/flight.h"
#include "oktopk/reduce/density.h"
#include "oktopk/reduce/nodes.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "oktopk/reduce/update_check.h"
#include "oktopk/sparse/cuts.h"
#include "oktopk/tune/cost.h"
#include "oktopk/tune/tuner.h"

namespace oktopk {
namespace {

// Entries inside a node are not worth compressing, and must arrive as they are.
constexpr Codec kInside = {IndexCoding::coo32, ValueCoding::fp32};

// The most entries that a step at k can apply, and that its leader can have sent. slots controls neither after a jump
// of the gradients.
std::size_t most_shared(std::size_t n, std::size_t k, std::size_t nodes, std::string_view preset) {
  if (preset == "slots" || preset == "auto") return 2 * n;
  return std::min(n, max_selection(k) * nodes) + std::min(n, max_selection(k));
}

std::string list(std::span<const int> leader_of) {
  std::ostringstream text;
  for (std::size_t r = 0; r < leader_of.size(); ++r) text << (r == 0 ? "" : " ") << leader_of[r];
  return text.str();
}

}  // namespace

NodeReducer::NodeReducer(Communicator& comm, std::uint64_t n, const ReducerOptions& options, const NodeOptions& node)
    : traced_(trace_messages(comm, options)), comm_(traced_ ? *traced_ : comm), options_(options) {
  options_.trace = options.trace.on_rank(comm.rank());
  agree_on_success(comm_, work_, [&] {
    n_ = checked_size("node reducer", n);
    require(node.group >= 0, "node reducer: group = ", node.group,
            ", but it must be 0 (ranks that share a host) or the number of ranks of a node");
    description_ =
        describe(options, n_) + ", nodes of " + (node.group == 0 ? std::string("a host") : digits(node.group));
    check_used(options);
    density_ = std::make_unique<DensityPlan>(options, n_);
    options_.device = device_of(options);
    check_ = std::make_unique<UpdateCheck>(options);
  });
  fingerprint_ = hash_text(description_);
  require_equal(comm_, "node reducer",
                "n = " + std::to_string(n_) + ", " + description_ + ", check every " + digits(options.check_every),
                work_);
  nodes_ = std::make_unique<Nodes>(comm, comm_, node.group, options_.trace, work_);
  const Cuts regions = equal_cuts(n_, nodes_->inside->size());
  cuts_.assign(regions.begin(), regions.end());
  if (options.preset == "auto") choose(node.group);
  is_dense_ = options_.preset == "dense";
  agree_on_success(comm_, work_, [&] {
    if (nodes_->inside->rank() != 0) return;
    ReducerOptions inner = options_;
    inner.nan_policy = NanPolicy::local;  // all P ranks compare notes, not only the leaders
    inner.check_every = 0;
    inner.checked = {};
    inner.trace_messages = false;  // the communicator between the nodes does
    reducer_.reset(new Reducer(*nodes_->outside, n_, inner, {.divisor = comm_.size()}));
  });
}

NodeReducer::~NodeReducer() = default;

// Preset auto: chooses once, for the leaders. All ranks measure, so that all know the choice.
void NodeReducer::choose(int group) {
  Profile profile = options_.profile ? *options_.profile
                                     : calibrate(comm_, {.most_bytes = most_measured(n_, comm_.size()),
                                                         .ranks_per_host = std::max(1, group),
                                                         .cpu = options_.cpu});
  profile.machine = profile.leaders.value_or(profile.machine);
  const Method method = make_tuner(options_, n_, nodes_->count(), profile).choice().method;
  options_.allreduce = options_of(method, options_);
  options_.preset = method.preset;
  options_ = only_used(options_);
}

std::size_t NodeReducer::k() const { return density_->k(); }
std::uint64_t NodeReducer::steps() const { return density_->steps(); }
bool NodeReducer::is_warm() const { return density_->is_warm(); }
void NodeReducer::set_steps(std::uint64_t steps) { density_->set_steps(steps); }
std::span<const int> NodeReducer::leaders() const { return nodes_->leaders; }
int NodeReducer::node_size() const { return nodes_->inside->size(); }

void NodeReducer::check_sound() const {
  if (spoilt_) fail<CommError>("node reducer: an earlier step failed half-way: ", way_out(comm_.size() > 1));
}

// After an exception of any kind the ranks are no longer in step, in this node and in the others.
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

// False: all ranks leave the step out.
bool NodeReducer::begin_step(Gradient gradient, float scale) {
  PhaseTimer timer(options_.trace, "node");
  times_ = {};
  comm_.flight()->begin_step(steps() + 1);
  const StepInput input{gradient, scale, n_, *options_.device, options_.nan_policy, work_, steps(), {}, check_.get()};
  if (fits_on_all_ranks(comm_, input, timer, times_)) return true;
  sent_ = {};
  return false;
}

Update NodeReducer::step(Gradient gradient, float scale) {
  check_sound();
  Span span(options_.trace, "step", "node");
  if (!begin_step(gradient, scale)) return {.sparse = {}, .skipped = true};
  const Update update = all_or_dead([&] { return synchronise(gradient, scale); });
  density_->count_step();
  check_->note(update, steps());
  comm_.flight()->end_step();
  span.arg("step", steps());
  span.arg("n", n_);
  span.arg("gathered", update.size());
  span.arg("leader", nodes_->leader());
  return update;
}

Update NodeReducer::synchronise(Gradient gradient, float scale) {
  const bool is_alone = node_size() == 1;
  PhaseTimer summing(options_.trace, "node");
  if (!is_alone) sum_in_node(gradient, scale);
  times_.inside = summing.lap("inside", {{"part", "sum"}});
  Update update;
  if (reducer_) {
    update = is_alone ? reducer_->step(gradient, scale) : step_of_sum();
    times_ += reducer_->times();
  }
  PhaseTimer sharing(options_.trace, "node");
  update = share(update, density_->is_dense() || is_dense_);
  times_.inside += sharing.lap("inside", {{"part", "share"}});
  return update;
}

// The Reducer would call it a gradient that somebody brought.
Update NodeReducer::step_of_sum() {
  try {
    return reducer_->step(sum_, 1.0F);
  } catch (const UsageError&) {
    const std::size_t bad = options_.device->first_nonfinite(sum_);
    require(bad == sum_.size(), "node reducer: the sum over the ranks of rank ", comm_.rank(),
            "'s node overflowed at index ", bad, ": scale the gradients down");
    throw;
  }
}

// On the leader, sum_ is the sum. NanPolicy::local has not looked yet.
void NodeReducer::sum_in_node(Gradient gradient, float scale) {
  if (options_.nan_policy == NanPolicy::local) {
    const Note note = inspect_values(*options_.device, gradient, scale, n_);
    require(note.severity == Severity::fine, "reducer: ", note.text);
  }
  sum_.resize(n_);
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  options_.device->accumulate({sum_, gradient, scale});
  if (node_sums_by_tree(n_, node_size())) {
    tree_reduce(*nodes_->inside, sum_, node_work_);
  } else {
    dense_reduce_scatter(*nodes_->inside, sum_, cuts_, DenseRounds::halving, node_work_);
    gather_regions(*nodes_->inside, sum_, cuts_, node_work_);
  }
}

// The leader's update, on all ranks of the node.
Update NodeReducer::share(const Update& update, bool dense) {
  sent_ = reducer_ ? reducer_->sent() : CooView{};
  if (node_size() == 1) return update;
  if (!dense) return share_sparse(update);
  sum_.resize(n_);
  if (reducer_) std::copy(update.dense.begin(), update.dense.end(), sum_.begin());
  broadcast(*nodes_->inside, 0, std::as_writable_bytes(std::span(sum_)));
  return {.sparse = {}, .dense = sum_};
}

Update NodeReducer::share_sparse(const Update& update) {
  const auto tag = static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(&fingerprint_, 1)), steps()));
  const FrameSpec spec{.codec = kInside, .range = {0, n_}, .tag = tag};
  message_.clear();
  if (reducer_) {
    encode_frame(spec, update.sparse, message_);
    encode_frame(spec, reducer_->sent(), message_);
    broadcast_up_to(*nodes_->inside, 0, message_, message_.size());
    return update;
  }
  const std::size_t entries = most_shared(n_, density_->most_entries(), nodes_->leaders.size(), options_.preset);
  message_.resize(max_frame_bytes(kInside, entries, 2 * std::size_t{n_}, 2));
  const std::size_t size = broadcast_up_to(*nodes_->inside, 0, message_, 0);
  auto bytes = std::span<const std::byte>(message_).first(size);
  for (SparseVector* part : {&update_, &node_sent_}) {
    part->clear();
    const Frame frame = expect_frame(bytes, spec, nodes_->leader());
    decode_frame(frame, *part);
    bytes = bytes.subspan(frame.bytes());
  }
  sent_ = node_sent_;
  return {.sparse = update_};
}

Update NodeReducer::flush() {
  check_sound();
  times_ = {};
  if (options_.nan_policy != NanPolicy::local)
    agree_on_success(comm_, work_, [] {}, {Call::Kind::flush, steps(), check_->is_on()});
  return all_or_dead([&] {
    const Update update = reducer_ ? reducer_->flush() : Update{};
    return share(update, true);
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

// ---- Saved states. A state says where its rank stood among the nodes; that of a leader holds its Reducer's. ----

struct NodeReducer::Saved {
  std::uint32_t P = 0;
  std::uint32_t rank = 0;
  std::uint64_t steps = 0;
  std::vector<int> leader_of;
  std::span<const std::byte> reducer;  // in the state that was read; empty unless of a leader

  static Saved take(StateReader& state) {
    require_saver(state, "a NodeReducer", ": load_all() takes the states of all ranks");
    Saved saved;
    state.take<std::uint64_t>();  // kNodeState
    saved.P = state.take<std::uint32_t>();
    saved.rank = state.take<std::uint32_t>();
    saved.steps = state.take<std::uint64_t>();
    saved.leader_of = state.take_all<int>();
    saved.reducer = state.take_view();
    state.finish();
    require(saved.rank < saved.P && saved.leader_of.size() == saved.P, "state: of rank ", saved.rank, " of ", saved.P,
            ", with the leaders of ", saved.leader_of.size());
    const bool leads = saved.leader_of[saved.rank] == static_cast<int>(saved.rank);
    require(leads != saved.reducer.empty(), "state: of rank ", saved.rank, " with leaders ", list(saved.leader_of),
            ", but ", leads ? "without" : "with", " a leader's state");
    return saved;
  }
};

void NodeReducer::write(StateWriter& state) const {
  require(!spoilt_, "node reducer: an earlier step failed half-way: what is left of it is not worth saving");
  state.put(kNodeState);
  state.put(static_cast<std::uint32_t>(comm_.size()));
  state.put(static_cast<std::uint32_t>(comm_.rank()));
  state.put(steps());
  state.put_all(std::span<const int>(nodes_->leader_of));
  if (reducer_)
    state.put_state([&](StateWriter& inner) { state_of(*reducer_).write(inner); });
  else
    state.put_bytes({});
}

NodeReducer::Saved NodeReducer::read(std::span<const std::byte> bytes) const {
  StateReader state(bytes);
  Saved saved = Saved::take(state);
  require_own(saved.P, saved.rank, comm_.size(), comm_.rank());
  require(saved.leader_of == nodes_->leader_of,
          "state: saved with other nodes (leaders of the ranks: ", list(saved.leader_of),
          "; now: ", list(nodes_->leader_of), "): load_all() takes the states of all");
  return saved;
}

// load() on every leader, or on none.
template <class Load>
void NodeReducer::restore(const Load& load) {
  agree_on_success(comm_, work_, [&] {
    if (reducer_) load(*reducer_);
  });
  set_steps(allreduce_small(comm_, reducer_ ? reducer_->steps() : 0, Reduction::max, work_));
  const bool has_ended = reducer_ && state_of(*reducer_).density.is_warm();
  density_->set_ended(allreduce_small(comm_, std::uint64_t{has_ended}, Reduction::max, work_) == 1);
  sent_ = {};
  spoilt_ = false;
  check_->forget();
}

void NodeReducer::load(std::span<const std::byte> state) {
  Saved saved;
  agree_on_success(comm_, work_, [&] { saved = read(state); }, {.kind = Call::Kind::load, .has_hash = check_->is_on()});
  const auto least = allreduce_small(comm_, saved.steps, Reduction::min, work_);
  const auto most = allreduce_small(comm_, saved.steps, Reduction::max, work_);
  require(least == most, "state: the ranks' states were saved after different numbers of steps, ", least, " to ", most);
  restore([&](Reducer& reducer) { reducer.load(saved.reducer); });
}

// All states are looked at first: which of them are leaders' they say themselves.
void NodeReducer::load_all(std::size_t count, const ReadState& read_state) {
  std::vector<std::size_t> led_by;  // ranks
  const auto open = [&](std::size_t r) {
    const auto bytes = read_state(r);
    StateReader state(bytes);
    if (StateReader(state).take<std::uint64_t>() != kNodeState) return bytes;  // no nodes: all ranks led
    const Saved saved = Saved::take(state);
    look_into_state(r, count, [&] { require_place(saved.P, saved.rank, count, r); });
    return saved.reducer;
  };
  const auto look = [&] {
    require(count > 0, "state: no states were given");
    for (std::size_t r = 0; r < count; ++r)
      if (!open(r).empty()) led_by.push_back(r);
  };
  agree_on_success(comm_, work_, look, {Call::Kind::load_all});
  restore([&](Reducer& reducer) { reducer.load_all(led_by.size(), [&](std::size_t i) { return open(led_by[i]); }); });
}

}  // namespace oktopk
