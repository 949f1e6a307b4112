// SPDX-License-Identifier: Apache-2.0
// slots: our algorithm for GPUs, here on the host. Tiles of 256 elements are dealt round to the ranks, so that all
// owners have about the same load without cuts. All messages have one size, which follows from n, k and P: nothing asks
// for counts first, and a GPU makes a whole step without a word from its host (gpu/kernels/slots.cu: the same bits).
//   1. The selection goes to its owners, P messages of one size. Entries that do not fit stay with the sender.
//   2. An owner adds the messages to its memory in rank order, takes out what reaches the global threshold, and writes
//      it to a share of the same size. Entries that do not fit stay in the memory.
//   3. All shares go to all ranks, and steer the next global threshold.
// sparse/slots_format.h has the format and the integer rules; parts/slot_messages.h reads and writes messages.
//
// COST: P-1 + ceil(log2 P) messages; 2(P-1)/P * 1.1k words and (P-1) * (0.5 n/(4096 P) + 20) of heads and counts; a
// pass over the n/P floats of owner memory.
#include <algorithm>
#include <bit>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/allreduce/parts/undo_list.h"
#include "oktopk/base/error.h"

namespace oktopk {
namespace {

using slots::Deal;

std::uint32_t bits_of_step_down(std::uint32_t bound) {
  constexpr std::uint32_t kWidth = slots::kStepsDown * slots::kQuarterOctave;
  return bound > kWidth ? bound - kWidth : 1;
}

class Slots final : public Allreduce {
 public:
  using Allreduce::Allreduce;
  std::string_view name() const override { return "slots"; }
  std::string coding() const override { return "place12+float20"; }
  std::size_t most_selected(std::size_t /*k*/) const override { return Device::kNoLimit; }
  Prediction predict(const Problem& problem) const override;
  OwnerMemory memory() const override;
  void scale_memory(const Device& device, float factor) override;
  void load_memory(const Device& device, std::span<const float> values) override;
  std::span<float> open(const Device& device, Index n, int rank, int P) override;
  bool read_changes(const Device& device, SparseVector& changed) override {
    changed_.read(changes_, device, {places(), 0}, changed);
    return steps() > 1;
  }

 protected:
  void do_note_changes() override { changes_.begin(); }
  void do_forget_changes() override { changes_.end(); }
  void do_undo_changes(const Device& device) override {
    changes_.undo(device, places(), 0);
    changes_.end();
  }
  void do_run(const Step& step, Outcome& out) override {
    if (step.count == 0) open(step.device, step.n, step.comm.rank(), step.P());
    const SlotStep now{deal_, step.k, step.count, step.tag};
    send(now, step, out);
    add_arrivals(now, step);
    take_share(now, step);
    apply(now, step, out);
  }

  void do_save(StateWriter& state) const override { state.put(k_, bound_); }
  void do_load(StateReader& state, Index n, int rank, int P) override;

 private:
  void set_deal(Index n, int rank, int P);
  std::span<float> places() const { return {memory_.get(), memory_ ? deal_.places() : 0}; }
  void append_indices(std::uint32_t owner, const SparseVector& places, SparseVector& out) const;
  void send(const SlotStep& now, const Step& step, Outcome& out);
  void add_arrivals(const SlotStep& now, const Step& step);
  void take_share(const SlotStep& now, const Step& step);
  void apply(const SlotStep& now, const Step& step, Outcome& out);
  void open_message(const SlotStep& now, Communicator& comm, std::size_t sender, SparseVector& entries) const;

  Deal deal_;
  std::uint32_t rank_ = 0;
  DeviceFloats memory_;  // by places
  std::uint64_t k_ = 0;  // that the global threshold is for; 0: none yet
  std::uint32_t bound_ = slots::kLeastBound;

  UndoList changes_;  // of memory_, in a tentative step
  ChangedEntries changed_;
  SlotWriter writer_;
  std::vector<SparseVector> by_owner_;
  SparseVector entries_, taken_, rest_;
  std::vector<std::uint32_t> mine_, all_;  // words of messages
  RunScratch runs_;
};

void Slots::set_deal(Index n, int rank, int P) {
  deal_ = Deal::of(n, static_cast<std::uint32_t>(P));
  rank_ = static_cast<std::uint32_t>(rank);
}

std::span<float> Slots::open(const Device& device, Index n, int rank, int P) {
  set_deal(n, rank, P);
  if (!memory_) memory_ = device.allocate(deal_.places());
  return places();
}

OwnerMemory Slots::memory() const {
  const auto n = static_cast<Index>(deal_.n);
  const Range region{std::min(rank_ * slots::kTile, n), n};
  return {{region, slots::kTile, slots::kTile * deal_.P}, places()};
}

void Slots::scale_memory(const Device& device, float factor) {
  factor == 0 ? device.write(places(), {}) : device.multiply(places(), factor);
}

// Entries by place become entries by index.
void Slots::append_indices(std::uint32_t owner, const SparseVector& places, SparseVector& out) const {
  for (std::size_t i = 0; i < places.size(); ++i)
    out.push_back(static_cast<Index>(deal_.index(owner, places.idx[i])), places.val[i]);
}

// Step 1. Rounding errors return to the residual; what does not fit never leaves it.
void Slots::send(const SlotStep& now, const Step& step, Outcome& out) {
  by_owner_.resize(deal_.P);
  for (SparseVector& part : by_owner_) part.clear();
  const CooView selection = step.mine.selection;
  for (std::size_t i = 0; i < selection.size(); ++i)
    by_owner_[deal_.owner(selection.idx[i])].push_back(static_cast<Index>(deal_.place(selection.idx[i])),
                                                       selection.val[i]);
  mine_.resize(deal_.P * now.words());
  for (std::uint32_t q = 0; q < deal_.P; ++q) {
    writer_.write(now, by_owner_[q], slots::kLeastBound, SlotWords(mine_).subspan(q * now.words(), now.words()), rest_);
    append_indices(q, rest_, out.returned);
    append_indices(q, writer_.unfit(), out.held);
  }
  all_.resize(mine_.size());
  alltoall(step.comm, std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)), work_);
}

void Slots::open_message(const SlotStep& now, Communicator& comm, std::size_t sender, SparseVector& entries) const {
  const std::string wrong = read_slot(now, std::span(all_).subspan(sender * now.words(), now.words()), entries);
  if (!wrong.empty()) fail_world(comm, "slots: the message of rank ", sender, " makes no sense: ", wrong);
}

void Slots::add_arrivals(const SlotStep& now, const Step& step) {
  for (std::uint32_t q = 0; q < deal_.P; ++q) {
    open_message(now, step.comm, q, entries_);
    if (!entries_.empty() && deal_.index(rank_, entries_.idx.back()) >= deal_.n)
      fail_world(step.comm, "slots: the message of rank ", q, " has an entry beyond n = ", deal_.n);
    changes_.add_at(step.device, places(), 0, entries_);
  }
}

// Step 2. The first threshold for a k is each owner's own: a part of k/P.
void Slots::take_share(const SlotStep& now, const Step& step) {
  if (k_ != step.k) {
    const std::size_t count = slots::divide_up(step.k, deal_.P);
    const float kth = count == 0 ? 0 : select_for_threshold(step.device, {.acc = places()}, count, taken_);
    bound_ = std::max(magnitude_bits(kth), slots::kLeastBound);
  }
  entries_.clear();
  taken_.clear();
  step.device.select_at_least(places(), 0, std::bit_cast<float>(bits_of_step_down(bound_)), entries_);
  SlotTail below{};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::uint32_t j = slots::tail_step(magnitude_bits(entries_.val[i]), bound_);
    if (j >= slots::kStepsDown && j < slots::kTail)
      taken_.push_back(entries_.idx[i], entries_.val[i]);
    else if (j < slots::kStepsDown)
      ++below[j];
  }
  const std::size_t bad = first_nonfinite(taken_.val);
  if (bad < taken_.size()) fail<UsageError>("at index ", deal_.index(rank_, taken_.idx[bad]));
  mine_.resize(now.words());
  SlotTail tail = writer_.write(now, taken_, bound_, mine_, rest_);
  for (std::size_t j = 0; j < slots::kStepsDown; ++j) tail[j] = below[j];
  end_slot(mine_, bound_, reached_of(tail));
  changes_.note_taken(taken_);
  step.device.clear_at(places(), 0, taken_.idx);
  step.device.add_at(places(), 0, rest_);
  step.device.add_at(places(), 0, writer_.unfit());
}

// Step 3.
void Slots::apply(const SlotStep& now, const Step& step, Outcome& out) {
  all_.resize(deal_.P * now.words());
  allgather(step.comm, std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)), work_);
  slots::ShareCounts counts;
  for (std::uint32_t q = 0; q < deal_.P; ++q) {
    open_message(now, step.comm, q, entries_);
    counts.add(slot_head(std::span(all_).subspan(q * now.words())));
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::uint64_t index = deal_.index(q, entries_.idx[i]);
      if (index >= deal_.n) fail_world(step.comm, "slots: rank ", q, " shares an entry beyond n = ", deal_.n);
      out.update.push_back(static_cast<Index>(index), entries_.val[i]);
    }
  }
  make_canonical(out.update, runs_);
  bound_ = counts.next_bound(bound_, k_ != step.k, step.k);
  k_ = step.k;
}

void Slots::do_load(StateReader& state, Index n, int rank, int P) {
  set_deal(n, rank, P);
  k_ = state.take<std::uint64_t>();
  bound_ = state.take<std::uint32_t>();
  require(bound_ >= slots::kLeastBound && bound_ < slots::kInfinity, "state: a global threshold with the bits ",
          bound_);
}

void Slots::load_memory(const Device& device, std::span<const float> values) {
  require(values.size() == deal_.places(), "state: ", values.size(), " values of owner memory for ", deal_.places(),
          " places");
  if (values.empty()) return;
  memory_ = device.allocate(deal_.places());
  device.write(places(), values);
}

// Sizes do not depend on the data.
Prediction Slots::predict(const Problem& problem) const {
  const Deal deal = Deal::of(static_cast<std::uint64_t>(problem.n), static_cast<std::uint32_t>(problem.P));
  const double peers = problem.P - 1;
  const auto words = static_cast<double>(slots::message_words(deal, static_cast<std::uint64_t>(std::ceil(problem.k))));
  const double bytes = peers * (words * sizeof(std::uint32_t) + static_cast<double>(kCheckBytes));
  const Cost cost = concurrent(peers, bytes, 2 * problem.k) +
                    sequential(ceil_log2(problem.P), bytes, problem.result(), problem.n / problem.P);
  return {cost, cost};
}

}  // namespace

std::unique_ptr<Allreduce> make_slots(const AllreduceOptions& options) { return std::make_unique<Slots>(options); }

}  // namespace oktopk
