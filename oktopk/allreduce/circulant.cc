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
#include "oktopk/allreduce/frames.h"
#include "oktopk/allreduce/global_threshold.h"
#include "oktopk/allreduce/reduce_scatter.h"
#include "oktopk/allreduce/share.h"
#include "oktopk/base/error.h"
#include "oktopk/device/region_memory.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr std::uint64_t kRecutPause = 16;  // steps between two changes of the cuts, at least

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
  MagnitudeHistogram bins_{};  // of this region's sums, those in the share included
  SparseVector share_;
  SparseVector put_back_;  // what was taken from m and does not leave
  std::vector<TailWindow> windows_;
  std::vector<std::uint64_t> load_;
  std::uint64_t last_recut_ = 0;
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
    note.log_threshold =
        std::llround(65536 * std::log2(std::max(smallest, std::numeric_limits<float>::min())));
  }
  scatter_.run(step.comm, selection,
               {.cuts = cuts_,
                .codec = options().codec,
                .tag = step.tag,
                .limit = max_selection(step.k),
                .note = &note},
               out.returned, out.dropped);
  out.arrived = scatter_.note().load;
  out.merged = scatter_.region().size();
}

// Chooses the threshold and takes this owner's share. More than k of one region cannot be needed.
void Circulant::steer(const Step& step, Outcome& out) {
  out.refreshed |= threshold_.follow(scatter_.note());
  if (remembers()) {
    take_from_memory(step);
  } else {
    take_from_sums(step);
  }
}

void Circulant::take_from_memory(const Step& step) {
  CooView arrived = scatter_.region();
  if (!threshold_.is_known()) {  // the histogram needs the sums, the sums' share a threshold
    memory_.add(arrived);
    arrived = {};
    bins_.fill(0);
    memory_.add_bins(step.device, bins_);
    threshold_.refresh(step.comm, bins_, step.k, work_);
  }
  memory_.add_take(step.device, arrived, threshold_.value(), share_);
  bins_.fill(0);
  memory_.add_bins(step.device, bins_);
  step.device.magnitude_histogram(share_.val, bins_);
  put_back_.clear();
  keep_largest(share_, step.k, &put_back_);
  memory_.add(put_back_);
}

void Circulant::take_from_sums(const Step& step) {
  const CooView sums = scatter_.region();
  bins_.fill(0);
  step.device.magnitude_histogram(sums.val, bins_);
  if (!threshold_.is_known()) threshold_.refresh(step.comm, bins_, step.k, work_);
  share_.clear();
  share_.append(sums);
  keep_at_least(share_, threshold_.value());
  keep_largest(share_, step.k);
}

void Circulant::gather(const Step& step, Outcome& out) {
  const int P = step.comm.size();
  message_.clear();
  put_share_header({scatter_.note().load, threshold_.window(bins_)}, step.tag, message_);
  // Under owner memory the rounding error stays in m.
  put_back_.clear();
  encode_frame({options().codec, mine_, step.tag}, share_, message_,
               error_sink(options().codec, remembers() ? put_back_ : out.returned));
  memory_.add(put_back_);
  capacities_.clear();
  for (int r = 0; r < P; ++r) {
    const std::size_t width = region(cuts_, r).width();
    capacities_.push_back(kShareHeaderBytes +
                          max_frame_bytes(options().codec, std::min(step.k, width), width));
  }
  gather_.run(step.comm, message_, capacities_, work_);
  windows_.clear();
  load_.clear();
  for (int r = 0; r < P; ++r) {
    const ShareHeader header = take_share_header(gather_.of(r), step.tag, r);
    windows_.push_back(header.window);
    load_.push_back(header.load);
    const Frame frame =
        expect_frame(gather_.of(r).subspan(kShareHeaderBytes), step.tag, region(cuts_, r), r);
    decode_frame(frame, out.update);
  }
}

void Circulant::settle(const Step& step, Outcome& out) {
  threshold_.observe(windows_, out.update.size(), step.k);
  put_back_.clear();
  keep_largest(out.update, step.k, remembers() ? &put_back_ : nullptr);
  memory_.add(part(put_back_, mine_));
  recut(step, out);
}

// New cuts when the load is uneven beyond noise; every rank knows all loads, so no message is
// needed. An owner takes the memory of the region that it leaves into its residual.
void Circulant::recut(const Step& step, Outcome& out) {
  if (step.count < last_recut_ + kRecutPause && step.count != 0) return;
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  for (const std::uint64_t load : load_) {
    total += load;
    largest = std::max(largest, load);
  }
  const double mean = static_cast<double>(total) / static_cast<double>(load_.size());
  if (static_cast<double>(largest) <= 1.5 * mean + 4 * std::sqrt(mean)) return;
  last_recut_ = step.count;
  memory_.append_to(step.device, out.returned);
  cuts_ = cuts_from_load(cuts_, load_);
  mine_ = region(cuts_, step.comm.rank());
  if (remembers()) memory_.reset(mine_);
}

void Circulant::do_save(StateWriter& state) const {
  state.put_all(std::span(cuts_));
  threshold_.save(state);
  state.put(last_recut_);
}

void Circulant::do_load(StateReader& state, Index n, int rank, int P) {
  scatter_.set_skips(parse_skips(options().skips, P));
  cuts_ = take_cuts(state, n, P);
  mine_ = region(cuts_, rank);
  threshold_.load(state);
  last_recut_ = state.take<std::uint64_t>();
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
  const auto block = [&](double entries) {
    return 8 + kShareHeaderBytes + kFrameHeaderBytes +
           expected_payload_bytes(options().codec, entries, problem.n / P);
  };
  const Skips skips = parse_skips(options().skips, problem.P);
  const auto total = [&](const Problem& p, double entries) {
    Cost cost = SparseReduceScatter::predict(skips, p, options().codec, true) +
                sequential(L, (P - 1) * block(entries), (P - 1) * entries);
    if (problem.refresh)
      cost += sequential(3 * L, L * (8 * (P - 1) + 4 * 256 + 8 * 32 + 3 * kCheckBytes));
    return cost;
  };
  Problem disjoint = problem;
  disjoint.disjoint = true;
  // The aim is 1.02 to 1.1 of k, and the count of a steady step within a fifth of it. A refresh
  // takes the lower edge of a bin, 1/32 of an octave wide, and never more than k per owner.
  if (problem.refresh)
    return {total(problem, 1.1 * share), total(disjoint, std::min(problem.k, problem.n / P))};
  return {total(problem, 1.05 * share), total(disjoint, 1.1 * 1.2 * share)};
}

}  // namespace

std::unique_ptr<Allreduce> make_circulant(const AllreduceOptions& options) {
  return std::make_unique<Circulant>(options);
}

}  // namespace oktopk
