// SPDX-License-Identifier: Apache-2.0
// circulant: our algorithm. A circulant reduce-scatter over any skip list, a global threshold steered by integers that
// travel with the data, a circulant allgather of the owners' shares, and a trim to exactly k that every rank makes
// alike. A steady step has no balance phase and no collectives for sizes or thresholds. With owner memory an owner adds
// the arrivals to its memory m, selects from m and keeps the rest: a value crosses the wire once. With sender keeps
// (the paper's rule) m is empty.
//
// COST (steady step): message_count(skips) + ceil(log2 P) messages (halving: exactly 2 ceil(log2 P)); words 2(P-1)/P k
// for direct skips, at most log2(P) k for halving, plus 2(P-1)/P * 1.02..1.1 k for the gather, plus frames; any codec.
#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/balance.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/parts/region_memory.h"
#include "oktopk/allreduce/parts/thresholds.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// The most entries that one owner may send: k of one region are always enough, and some more show how far the threshold
// must rise.
std::size_t most_share(std::size_t k) { return k + k / 4 + 1; }

class Circulant final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "circulant"; }
  Prediction predict(const Problem& problem) const override;
  OwnerMemory memory() const override { return {{mine_}, memory_.values()}; }
  void check_ranks(int P) const override { parse_skips(options().skips, P); }
  void scale_memory(const Device& device, float factor) override { memory_.scale(device, factor); }
  void load_memory(const Device& device, std::span<const float> values) override;
  bool read_changes(const Device& device, SparseVector& changed) override {
    return memory_.read_changes(device, changed);
  }

 protected:
  void do_note_changes() override { memory_.note_changes(); }
  void do_forget_changes() override { memory_.forget_changes(); }
  void do_undo_changes(const Device& device) override { memory_.undo(device); }

  void do_run(const Step& step, Outcome& out) override {
    if (step.count == 0) prepare(step);
    reduce(step, out);
    out.refreshed |= threshold_.follow(scatter_.tally(), step.k);
    remembers() ? take_from_memory(step) : take_from_sums(step);
    gather(step, out);
    trim(step, out);
    recut(step, out);
  }

  void do_save(StateWriter& state) const override;
  void do_load(StateReader& state, Index n, int rank, int P) override;

 private:
  bool remembers() const { return residual_rule(options().residual).owner_remembers; }
  void prepare(const Step& step);
  void set_cuts(const Cuts& cuts, int rank);
  void clear_memory(const Device& device) {
    if (remembers()) memory_.load(device, mine_);
  }
  void reduce(const Step& step, Outcome& out);
  void take_from_memory(const Step& step);
  void take_from_sums(const Step& step);
  void gather(const Step& step, Outcome& out);
  void trim(const Step& step, Outcome& out);
  void recut(const Step& step, Outcome& out);

  Cuts cuts_;
  Range mine_;           // this rank's region
  RegionMemory memory_;  // m: of the region, empty unless owner memory
  SparseReduceScatter scatter_;
  GlobalThreshold threshold_;
  NearTail near_;  // of this region's sums
  SparseVector share_;
  SparseVector put_back_;  // entries that were taken from m and do not leave
  GlobalThreshold::Gathered seen_;
  std::vector<std::uint64_t> load_;
  RecutRule recut_rule_;
  ShareGather gather_;
};

// The first cuts come from votes: one small collective, once.
void Circulant::prepare(const Step& step) {
  scatter_.set_skips(parse_skips(options().skips, step.P()));
  set_cuts(vote_on_cuts(step, work_), step.comm.rank());
  clear_memory(step.device);
}

void Circulant::set_cuts(const Cuts& cuts, int rank) {
  cuts_ = cuts;
  mine_ = region(cuts_, rank);
}

void Circulant::reduce(const Step& step, Outcome& out) {
  const BlockTally tally = BlockTally::of(step.mine.selection);
  scatter_.run(step, cuts_, {.tally = &tally}, out);
  out.arrived = scatter_.tally().load;
  out.merged = scatter_.sums().size();
}

void Circulant::take_from_memory(const Step& step) {
  CooView arrived = scatter_.sums();
  const bool was_known = threshold_.is_known();
  if (!was_known) {  // the threshold depends on the new sums, so they are added first
    memory_.add(step.device, arrived);
    arrived = {};
    share_.clear();
    memory_.append_largest(step.device, threshold_.aim(step.k), share_);
    threshold_.refresh(step.comm, share_.val, step.k, work_);
  }
  memory_.add_take(step.device, arrived, threshold_.value(), share_, near_);
  if (!was_known) {
    intersect(share_, scatter_.sums().idx, put_back_);
    near_.arrivals = put_back_.size();
  }
  put_back_.clear();
  keep_largest(share_, most_share(step.k), &put_back_);
  memory_.add(step.device, put_back_);
}

void Circulant::take_from_sums(const Step& step) {
  const CooView sums = scatter_.sums();
  if (!threshold_.is_known()) threshold_.refresh(step.comm, sums.val, step.k, work_);
  share_.clear();
  share_.append(sums);
  keep_at_least(share_, threshold_.value().value);
  near_ = {};
  near_.arrivals = share_.size();
  near_.count(threshold_.value(), sums.val);
  keep_largest(share_, most_share(step.k));
}

void Circulant::gather(const Step& step, Outcome& out) {
  Bytes& message = gather_.begin();
  put(ShareTally{scatter_.tally().load, near_}, message);
  FrameSpec spec = step.frame(mine_);
  spec.tag = tag_behind(message, step.tag);
  // With owner memory the rounding error stays in m.
  put_back_.clear();
  encode_frame(spec, share_, message, error_sink(step.codec, remembers() ? put_back_ : out.returned));
  memory_.add(step.device, put_back_);
  const auto capacity = [&](int, std::size_t width) {
    return ShareTally::kMaxBytes + max_frame_bytes(step.codec, std::min(most_share(step.k), width), width);
  };
  gather_.run(step, cuts_, capacity);
  seen_ = {};
  load_.clear();
  for (int r = 0; r < step.P(); ++r) {
    std::span<const std::byte> rest = gather_.message(r);
    const ShareTally tally = take_share_tally(rest, r);
    seen_.near += tally.near;
    load_.push_back(tally.load);
    const Frame frame = gather_.open(step, r, gather_.message(r).size() - rest.size());
    seen_.is_capped |= frame.count >= most_share(step.k);
    decode_frame(frame, out.update);
  }
}

// Shrinks the update to k entries; an owner remembers the entries of its region that go.
void Circulant::trim(const Step& step, Outcome& out) {
  seen_.values = out.update.val;
  if (remembers() && out.update.size() > step.k) seen_.remembered = out.update.size() - step.k;
  threshold_.observe(seen_, step.k);
  put_back_.clear();
  keep_largest(out.update, step.k, remembers() ? &put_back_ : nullptr);
  memory_.add(step.device, part(put_back_, mine_));
}

// Every rank knows all loads, so no message is needed. An owner moves the memory of the region that it gives up into
// its residual.
void Circulant::recut(const Step& step, Outcome& out) {
  if (!recut_rule_.is_due(step.count, cuts_, load_)) return;
  memory_.append_to(step.device, out.returned);
  set_cuts(cuts_from_load(cuts_, load_), step.comm.rank());
  clear_memory(step.device);
}

void Circulant::do_save(StateWriter& state) const {
  state.put_all(std::span(cuts_));
  threshold_.save(state);
  recut_rule_.save(state);
}

void Circulant::do_load(StateReader& state, Index n, int rank, int P) {
  scatter_.set_skips(parse_skips(options().skips, P));
  set_cuts(take_cuts(state, n, P), rank);
  threshold_.load(state);
  recut_rule_.load(state);
}

void Circulant::load_memory(const Device& device, std::span<const float> values) {
  require(values.size() == (remembers() ? mine_.width() : 0), "state: ", values.size(),
          " values of owner memory for a region of ", mine_.width());
  if (remembers()) memory_.load(device, mine_, values);
}

Prediction Circulant::predict(const Problem& problem) const {
  const double P = problem.P;
  const auto message = [&](double load, double arrivals, double below, double entries) {
    const auto whole = [](double number) { return static_cast<std::uint64_t>(std::ceil(number)); };
    ShareTally tally{.load = whole(load), .near = {.arrivals = whole(arrivals)}};
    tally.near.below.fill(whole(below));
    return tally_bytes(tally) + expected_frame_bytes(codec(), entries, problem.n / P);
  };
  const Skips skips = parse_skips(options().skips, problem.P);
  const auto total = [&](const Problem& p, double bytes, double entries) {
    const BlockTally tally;
    Cost cost =
        SparseReduceScatter::predict(skips, p, codec(), {.tally = &tally}) + ShareGather::cost(p.P, bytes, entries);
    if (p.refresh) cost += kth_sum_cost(p.P) + vote_cost(p.P);
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  // The aim is 1.02 to 1.1 of k, and the count of a steady step within a fifth of it; a refresh finds the aim exactly.
  // The window is steered to hold k/32 to k/4 entries.
  const double share = problem.result() / P;
  const double most = GlobalThreshold::most_gathered(problem.result()) / P;
  const double width = problem.n / P;
  return {total(problem, message(problem.k, share, share / 64, 1.05 * share), 1.05 * share),
          total(disjoint, message(2 * problem.k * P, width, width, most), most)};
}

}  // namespace

std::unique_ptr<Allreduce> make_circulant(const AllreduceOptions& options) {
  return std::make_unique<Circulant>(options);
}

}  // namespace oktopk
