// SPDX-License-Identifier: Apache-2.0
// circulant: our algorithm. A circulant reduce-scatter over any skip list, a global threshold
// steered by integers that travel with the data, a circulant allgather of the owners' shares, and a
// trim to exactly k that every rank makes alike. No balance phase, no size or threshold collectives
// in a steady step. With owner memory an owner adds what arrives to its memory m, selects from m
// and keeps the rest: a value crosses the wire once. With sender keeps (the paper's rule) m is
// empty.
//
// COST (steady step): message_count(skips) + ceil(log2 P) messages (halving: exactly 2
// ceil(log2 P)); words 2(P-1)/P k for direct skips, at most log2(P) k for halving, plus 2(P-1)/P
// * 1.02..1.1 k for the gather, plus frames; any codec.
#include <algorithm>
#include <cmath>
#include <limits>

#include "oktopk/allreduce/algorithms.h"
#include "oktopk/allreduce/parts/frames.h"
#include "oktopk/allreduce/parts/global_threshold.h"
#include "oktopk/allreduce/parts/recut_rule.h"
#include "oktopk/allreduce/parts/reduce_scatter.h"
#include "oktopk/allreduce/parts/region_memory.h"
#include "oktopk/allreduce/parts/share.h"
#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

// The most entries that one owner may send: more than k of one region cannot be needed, but some
// more show how far the threshold must rise.
std::size_t most_share(std::size_t k) { return k + k / 4 + 1; }

class Circulant final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "circulant"; }
  Prediction predict(const Problem& problem) const override;
  OwnerMemory memory() const override {
    if (!remembers()) return {mine_, {}};
    return {mine_, memory_.values()};
  }
  void check_ranks(int P) const override { parse_skips(options().skips, P); }
  void scale_memory(const Device& device, float factor) override { memory_.scale(device, factor); }
  void load_memory(std::span<const float> values) override;

 protected:
  void do_run(const Step& step, Outcome& out) override {
    if (step.count == 0) prepare(step);
    reduce(step, out);
    steer(step, out);
    gather(step, out);
    settle(step, out);
  }

  void do_save(StateWriter& state) const override;
  void do_load(StateReader& state, Index n, int rank, int P) override;

 private:
  bool remembers() const { return options().residual == ResidualKind::owner_memory; }
  void prepare(const Step& step);
  void reduce(const Step& step, Outcome& out);
  void steer(const Step& step, Outcome& out);
  void take_from_memory(const Step& step);
  void take_from_sums(const Step& step);
  void gather(const Step& step, Outcome& out);
  void settle(const Step& step, Outcome& out);
  void recut(const Step& step, Outcome& out);

  Cuts cuts_;
  Range mine_;           // this rank's region
  RegionMemory memory_;  // m: of the region, empty unless owner memory
  SparseReduceScatter scatter_;
  GlobalThreshold threshold_;
  NearTail near_;  // of this region's sums
  SparseVector share_;
  SparseVector put_back_;  // what was taken from m and does not leave
  GlobalThreshold::Gathered seen_;
  std::vector<std::uint64_t> load_;
  RecutRule recut_rule_;
  Bytes message_;
  FrameGather gather_;
  std::vector<std::size_t> capacities_;
};

// First cuts by vote: one small collective, once.
void Circulant::prepare(const Step& step) {
  const int P = step.comm.size();
  scatter_.set_skips(parse_skips(options().skips, P));
  std::vector<std::uint64_t> votes(static_cast<std::size_t>(P) - 1);
  vote_cuts(step.mine.selection, step.n, P, votes);
  allreduce_small(step.comm, std::span(votes), Reduction::sum, work_);
  cuts_ = cuts_from_votes(votes, step.n, P);
  mine_ = region(cuts_, step.comm.rank());
  if (remembers()) memory_.reset(mine_);
}

void Circulant::reduce(const Step& step, Outcome& out) {
  const CooView selection = step.mine.selection;
  BlockNote note;
  if (!selection.empty()) {
    note.contributors = 1;
    const float smallest = smallest_magnitude(selection.val);
    const float normal = std::max(smallest, std::numeric_limits<float>::min());
    note.log_threshold = std::llround(BlockNote::kOctave * std::log2(normal));
  }
  scatter_.run(
      step.comm, selection,
      {.cuts = cuts_, .codec = options().codec, .tag = step.tag, .limit = max_selection(step.k), .note = &note},
      out.returned, out.dropped);
  out.arrived = scatter_.note().load;
  out.merged = scatter_.region().size();
}

// Chooses the threshold and takes this owner's share.
void Circulant::steer(const Step& step, Outcome& out) {
  out.refreshed |= threshold_.follow(scatter_.note(), step.k);
  if (remembers()) {
    take_from_memory(step);
  } else {
    take_from_sums(step);
  }
}

void Circulant::take_from_memory(const Step& step) {
  CooView arrived = scatter_.region();
  const bool was_known = threshold_.is_known();
  if (!was_known) {  // the threshold needs the sums, the sums' share the threshold
    memory_.add(arrived);
    arrived = {};
    share_.clear();
    memory_.append_largest(step.device, threshold_.aim(step.k), share_);
    threshold_.refresh(step.comm, share_.val, step.k, work_);
  }
  memory_.add_take(step.device, arrived, threshold_.value(), share_, near_);
  if (!was_known) {
    intersect(share_, scatter_.region().idx, put_back_);
    near_.arrivals = put_back_.size();
  }
  put_back_.clear();
  keep_largest(share_, most_share(step.k), &put_back_);
  memory_.add(put_back_);
}

void Circulant::take_from_sums(const Step& step) {
  const CooView sums = scatter_.region();
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
  const int P = step.comm.size();
  message_.clear();
  put_share_header({scatter_.note().load, near_}, message_);
  // Under owner memory the rounding error stays in m.
  put_back_.clear();
  encode_frame({options().codec, mine_, tag_behind(message_, step.tag)}, share_, message_,
               error_sink(options().codec, remembers() ? put_back_ : out.returned));
  memory_.add(put_back_);
  capacities_.clear();
  for (int r = 0; r < P; ++r) {
    const std::size_t width = region(cuts_, r).width();
    capacities_.push_back(kMaxShareHeaderBytes +
                          max_frame_bytes(options().codec, std::min(most_share(step.k), width), width));
  }
  gather_.run(step.comm, message_, capacities_, work_);
  seen_ = {};
  load_.clear();
  for (int r = 0; r < P; ++r) {
    const std::span<const std::byte> block = gather_.of(r);
    std::span<const std::byte> rest = block;
    const ShareHeader header = take_share_header(rest, r);
    seen_.near += header.near;
    load_.push_back(header.load);
    const std::uint32_t tag = tag_behind(block.first(block.size() - rest.size()), step.tag);
    const Frame frame = expect_frame(rest, {options().codec, region(cuts_, r), tag}, r);
    seen_.is_capped |= frame.count >= most_share(step.k);
    decode_frame(frame, out.update);
  }
}

void Circulant::settle(const Step& step, Outcome& out) {
  seen_.values = out.update.val;
  if (remembers() && out.update.size() > step.k) seen_.remembered = out.update.size() - step.k;
  threshold_.observe(seen_, step.k);
  put_back_.clear();
  keep_largest(out.update, step.k, remembers() ? &put_back_ : nullptr);
  memory_.add(part(put_back_, mine_));
  recut(step, out);
}

// Every rank knows all loads, so no message is needed. An owner takes the memory of the region that
// it leaves into its residual.
void Circulant::recut(const Step& step, Outcome& out) {
  if (!recut_rule_.is_due(step.count, cuts_, load_)) return;
  memory_.append_to(step.device, out.returned);
  cuts_ = cuts_from_load(cuts_, load_);
  mine_ = region(cuts_, step.comm.rank());
  if (remembers()) memory_.reset(mine_);
}

void Circulant::do_save(StateWriter& state) const {
  state.put_all(std::span(cuts_));
  threshold_.save(state);
  recut_rule_.save(state);
}

void Circulant::do_load(StateReader& state, Index n, int rank, int P) {
  scatter_.set_skips(parse_skips(options().skips, P));
  cuts_ = take_cuts(state, n, P);
  mine_ = region(cuts_, rank);
  threshold_.load(state);
  recut_rule_.load(state);
}

void Circulant::load_memory(std::span<const float> values) {
  require(values.size() == (remembers() ? mine_.width() : 0), "state: ", values.size(),
          " values of owner memory for a region of ", mine_.width());
  if (remembers()) memory_.load(mine_, values);
}

Prediction Circulant::predict(const Problem& problem) const {
  const double P = problem.P;
  const double L = ceil_log2(problem.P);
  const double share = problem.result() / P;
  // The window is steered to hold k/32 to k/4 entries.
  const double header = expected_share_header_bytes(problem.k, share, share / 64);
  const double longest = expected_share_header_bytes(2 * problem.k * P, problem.n / P, problem.n / P);
  const auto block = [&](double head, double entries) {
    return gathered_bytes(head + expected_frame_bytes(options().codec, entries, problem.n / P));
  };
  const Skips skips = parse_skips(options().skips, problem.P);
  const auto total = [&](const Problem& p, double head, double entries) {
    Cost cost = SparseReduceScatter::predict(skips, p, options().codec, true) +
                sequential(L, (P - 1) * block(head, entries), (P - 1) * entries);
    if (problem.refresh) cost += KthSumFinder::cost(problem.P) + sequential(L, L * (8 * (P - 1) + kCheckBytes));
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  // The aim is 1.02 to 1.1 of k, and the count of a steady step within a fifth of it. A refresh
  // finds the aim exactly.
  const double most = GlobalThreshold::most_gathered(problem.result());
  return {total(problem, header, 1.05 * share), total(disjoint, longest, most / P)};
}

}  // namespace

std::unique_ptr<Allreduce> make_circulant(const AllreduceOptions& options) {
  return std::make_unique<Circulant>(options);
}

}  // namespace oktopk
