// SPDX-License-Identifier: Apache-2.0
// The base class of the algorithms: every rank contributes a selection, all ranks receive the same update. Each
// subclass is one file, which arranges verbs of the Device (n elements), of the Communicator (bytes) and of the
// entries' code in sparse/ and codec/ (about k entries, in host memory). An object belongs to one rank and one stream
// of steps: it keeps thresholds, cuts, owner memory and buffers between steps.
//
// SPMD: all ranks call run() with the same n, k and options in the same order. The first run compares them (UsageError
// on every rank, nothing lost). Later frames carry a tag of them and of the step, so that a rank that diverges causes a
// CommError on every rank that receives from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "oktopk/allreduce/presets.h"
#include "oktopk/allreduce/residual.h"
#include "oktopk/base/state.h"
#include "oktopk/codec/frame.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/device/device.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/coo.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/tune/cost.h"

namespace oktopk {

// The input of this rank: its selection, in host memory; for dense algorithms the whole accumulator, in the device's.
struct Contribution {
  CooView selection;
  std::span<const float> dense = {};
  Gradient gradient = {};   // the values that were just added to them, if any: an error names its entries; the device's
  bool checks_sum = false;  // the caller checks a dense sum, in a pass that it makes anyway
};

// Throws SumOverflow that names the algorithm and the index.
[[noreturn]] void fail_overflow(std::string_view algorithm, std::size_t i);
// Says why element i of an accumulator is not finite after `gradient` was added.
std::string describe_nonfinite(const Device& device, Gradient gradient, std::size_t i);

class Allreduce {
 public:
  explicit Allreduce(AllreduceOptions options) : options_(std::move(options)) {}
  virtual ~Allreduce() = default;

  virtual std::string_view name() const = 0;
  virtual Prediction predict(const Problem& problem) const = 0;
  virtual OwnerMemory memory() const { return {}; }
  // Makes what a step needs before the first one, for callers that make it on the GPU themselves. Returns the owner
  // memory, which their step changes.
  virtual std::span<float> open(const Device& /*device*/, Index /*n*/, int /*rank*/, int /*P*/) { return {}; }
  // Multiplies owner memory by factor; 0 empties it. Thresholds and cuts stay.
  virtual void scale_memory(const Device& /*device*/, float /*factor*/) {}
  virtual bool is_dense() const { return false; }
  // The most entries of a selection.
  virtual std::size_t most_selected(std::size_t k) const { return max_selection(k); }
  // How entries travel, in words.
  virtual std::string coding() const { return to_string(codec()); }
  // Whether the bound of predict() holds on any stream. Where nothing controls the counts (oktopk by the paper's
  // thresholds, gaussiank), predict() needs the counts, too.
  virtual bool promises_volume() const { return true; }

  // Collective. REQUIRES: 1 <= k <= n (n = 0: k = 0); the selection canonical, finite, inside [0, n), at most
  // most_selected(k) entries. Throws UsageError before anything is sent. ENSURES: the update is finite. A sum that
  // overflows is an error on every rank: SumOverflow where all ranks see it; elsewhere a UsageError on its owner, a
  // CommError on the others, and comm is dead.
  void run(Communicator& comm, const Device& device, const Contribution& mine, Index n, std::size_t k, Outcome& out);

  // Compares n, k and options over the ranks. Collective on its first call, nothing later. Throws UsageError on every
  // rank when they differ. run() does it, too; a caller that changes state of its own before run() calls it first, with
  // its own options and the call that it makes, in words.
  void agree(Communicator& comm, Index n, std::size_t k, std::string_view caller_options = "",
             std::string_view call = "step()");

  // The state that the next run depends on, besides options and memory(), which the caller saves. load() and then
  // load_memory() take it to a fresh object of the same options, n, rank and P; the next run compares n, k and options
  // once more.
  void save(StateWriter& state) const;
  void load(StateReader& state, Index n, int rank, int P);
  // Throws UsageError unless `values`, in host memory, is as long as this rank's region, or empty where nothing is
  // remembered.
  virtual void load_memory(const Device& device, std::span<const float> values);

  // Tentative runs: note_changes() before a run, then either undo_changes(), which gives owner memory, thresholds and
  // cuts the values that they had, also when the run threw half-way; or forget_changes(). Local. COST: O(k). undo is
  // for objects that have run before; a first run is taken back by making the object anew.
  void note_changes();
  void forget_changes();
  void undo_changes(const Device& device, Index n, int rank, int P);
  // Between the two: the places of memory() that may have changed, increasing, with their new values. False: nobody
  // knows, or the region is a new one. COST: O(k), and a bit per place.
  virtual bool read_changes(const Device& /*device*/, SparseVector& changed) {
    changed.clear();
    return true;
  }
  std::uint64_t steps() const { return steps_; }

  // Throws UsageError when the options do not fit P ranks. Local.
  virtual void check_ranks(int /*P*/) const {}

  const AllreduceOptions& options() const { return options_; }
  Codec codec() const { return options_.codec.value_or(Codec{}); }

  // One call of run(), for the subclass and its parts.
  struct Step {
    Communicator& comm;
    const Device& device;
    const Contribution& mine;
    Index n;
    std::size_t k;
    Codec codec;
    std::uint32_t tag;    // of every frame of this step
    std::uint64_t count;  // steps before this one

    int P() const { return comm.size(); }  // NOLINT(readability-identifier-naming): the symbol of the papers
    FrameSpec frame(Range range) const { return {codec, range, tag}; }
  };

 protected:
  virtual void do_run(const Step& step, Outcome& out) = 0;
  // The same for owner memory.
  virtual void do_note_changes() {}
  virtual void do_forget_changes() {}
  virtual void do_undo_changes(const Device& /*device*/) {}
  virtual void do_save(StateWriter& /*state*/) const {}
  virtual void do_load(StateReader& /*state*/, Index /*n*/, int /*rank*/, int /*P*/) {}

  Workspace work_;

 private:
  AllreduceOptions options_;
  RunScratch runs_;
  std::uint64_t fingerprint_ = 0;
  std::uint64_t steps_ = 0;
  StateWriter before_;  // the state without memory, before a tentative run
  bool agreed_ = false;
  Index n_ = 0;  // of all steps; k may change from step to step, on all ranks alike
};

// The preset's algorithm. options.residual none: the preset's default rule. Throws UsageError when the preset cannot
// work with the rule asked for.
std::unique_ptr<Allreduce> make_allreduce(const Preset& preset, AllreduceOptions options);

// The part of the options that the preset's selector needs.
SelectorOptions selector_options(const AllreduceOptions& options, int P);

// The schedule that dense takes for n values on P ranks: ring, or else Rabenseifner's.
bool dense_uses_ring(const AllreduceOptions& options, double n, int P);

// Factories for the table in presets.cc, one per algorithm; topka.cc and topkdsa.cc have two each.
std::unique_ptr<Allreduce> make_dense(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topka(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_gaussiank(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topkdsa(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_gtopk(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_topka2a(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_oktopk(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_spardl(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_circulant(const AllreduceOptions& options);
std::unique_ptr<Allreduce> make_slots(const AllreduceOptions& options);

}  // namespace oktopk
