// SPDX-License-Identifier: Apache-2.0
// A step is a list of stages; a stage is a pattern of messages over P byte counts, one per region
// or rank. The patterns are those of comm/collectives.h and comm/skips.h without their payload.
#include "tools/simulate/sized.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/allreduce/parts/gather.h"
#include "oktopk/base/error.h"
#include "oktopk/base/find_row.h"
#include "oktopk/select/selector.h"

namespace oktopk {
namespace {

// Peers at a time of a direct split, which the library asks for all at once: simulators take far
// too long over P^2 messages in flight. Costs ceil((P - 1) / kWave) latencies instead of one.
constexpr std::size_t kWave = 16;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::size_t frame_bytes(Codec codec, std::size_t entries, std::size_t width) {
  return static_cast<std::size_t>(
      std::llround(expected_frame_bytes(codec, static_cast<double>(entries), static_cast<double>(width))));
}

// A block in allgatherv, behind its size.
std::size_t prefixed(std::size_t block) { return prefix_bytes(block) + block; }

}  // namespace

std::vector<std::size_t> block_sizes(CooView selection, const Cuts& cuts) {
  std::vector<std::size_t> sizes;
  for (int r = 0; r + 1 < static_cast<int>(cuts.size()); ++r) sizes.push_back(part(selection, region(cuts, r)).size());
  return sizes;
}

struct SizedAllreduce::Build {
  SizedAllreduce& to;
  const AllreduceOptions& options;
  const SizedProblem& problem;
  const Cuts cuts;

  std::size_t width(int r) const { return region(cuts, r).width(); }

  // One stage with size(r) bytes for rank or region r.
  template <class Size>
  Stage& add(Pattern pattern, Size size) {
    Stage stage{.pattern = pattern, .before = {0}};
    for (int r = 0; r < problem.P; ++r) stage.before.push_back(stage.before.back() + size(r));
    to.stages_.push_back(std::move(stage));
    return to.stages_.back();
  }

  void gather_sizes() {
    add(Pattern::gather, [](int) { return kSizesBytes; });
  }

  void split(std::size_t bucket) {
    const Codec codec = options.codec;
    to.bucket_ = bucket;
    Stage& stage = add(Pattern::split, [&](int r) { return frame_bytes(codec, problem.blocks[at(r)], width(r)); });
    for (int r = 0; r < problem.P; ++r)
      stage.capacity.push_back(max_frame_bytes(codec, std::min(max_selection(problem.k), width(r)), width(r)));
  }

  void dense() {
    const bool ring = dense_uses_ring(options, problem.n, problem.P);
    const std::size_t bytes = options.codec.lossless() ? sizeof(float) : sizeof(Bf16);
    const auto values = [&](int r) { return bytes * width(r); };
    add(ring ? Pattern::ring_scatter : Pattern::scatter, values);
    add(ring ? Pattern::ring_gather : Pattern::gather, values);
  }

  void topka() {
    const std::size_t frame = frame_bytes(options.codec, problem.k, problem.n);
    add(Pattern::gather, [&](int) { return prefixed(frame); });
  }

  void gaussiank() {
    gather_sizes();
    topka();
  }

  void topkdsa() {
    split(std::min(at(problem.P), kWave));
    gather_sizes();
    add(Pattern::gather, [&](int r) {
      const std::size_t sparse = frame_bytes(options.codec, problem.region_unions[at(r)], width(r));
      return prefixed(std::min(sparse, dense_frame_bytes(options.codec, width(r))));
    });
  }

  void topka2a() {
    split(std::min(at(problem.P), kWave));
    add(Pattern::gather, [&](int r) { return prefixed(dense_frame_bytes(options.codec, width(r))); });
  }

  void votes() {
    const std::size_t bytes = sizeof(std::uint64_t) * at(problem.P - 1) + kCheckBytes;
    add(Pattern::small_reduce, [&](int) { return bytes; });
  }

  void oktopk_refresh() {
    votes();
    require(options.bucket >= 1, "sized: bucket = ", options.bucket, ", must be at least 1");
    split(at(options.bucket));
    gather_sizes();
    add(Pattern::gather,
        [&](int r) { return prefixed(frame_bytes(options.codec, problem.region_unions[at(r)], width(r))); });
  }

  struct Row {
    std::string_view name;
    void (Build::*build)();
    bool needs_blocks;
    bool needs_unions;
  };
  static const Row& find(std::string_view preset) {
    static constexpr std::array<Row, 6> kRows = {{
        {"dense", &Build::dense, false, false},
        {"topka", &Build::topka, false, false},
        {"gaussiank", &Build::gaussiank, false, false},
        {"topkdsa", &Build::topkdsa, true, true},
        {"topka2a", &Build::topka2a, true, false},
        {"oktopk_refresh", &Build::oktopk_refresh, true, true},
    }};
    return find_row(kRows, "preset with sizes", preset);
  }

  void check(const Row& row) const {
    const std::size_t P = at(problem.P);
    require(cuts.size() == P + 1 && cuts.front() == 0 && cuts.back() == problem.n &&
                std::is_sorted(cuts.begin(), cuts.end()),
            "sized: the cuts must divide [0, ", problem.n, ") into P = ", P, " regions");
    require(!row.needs_blocks || problem.blocks.size() == P, "sized: ", row.name,
            " needs this rank's entries in each of P = ", P, " regions, got ", problem.blocks.size());
    require(!row.needs_unions || problem.region_unions.size() == P, "sized: ", row.name,
            " needs the union in each of P = ", P, " regions, got ", problem.region_unions.size());
  }
};

SizedAllreduce::SizedAllreduce(std::string_view preset, const AllreduceOptions& options, const SizedProblem& problem)
    : P_(problem.P), bucket_(1) {
  require(P_ >= 1, "sized: P = ", P_, ", must be at least 1");
  require(problem.k >= 1 && problem.k <= problem.n, "sized: k = ", problem.k, ", must be in 1..n with n = ", problem.n);
  const Build::Row& row = Build::find(preset);
  Build build{*this, options, problem, problem.cuts.empty() ? equal_cuts(problem.n, P_) : problem.cuts};
  build.check(row);
  phases_ = circulant_phases(halving_skips(P_));
  (build.*row.build)();
  for (const Stage& stage : stages_) shared_bytes_ = std::max(shared_bytes_, largest_message(stage));
}

std::size_t SizedAllreduce::Stage::bytes(int first, int count) const {
  const int P = static_cast<int>(before.size()) - 1;
  const int begin = first % P;
  const int end = begin + count;
  if (end <= P) return before[at(end)] - before[at(begin)];
  return before[at(P)] - before[at(begin)] + before[at(end - P)];
}

std::size_t SizedAllreduce::largest_message(const Stage& stage) const {
  if (P_ == 1) return 0;
  // A peer's block for this rank may be larger than this rank's for anyone.
  std::size_t largest = stage.capacity.empty() ? 0 : *std::max_element(stage.capacity.begin(), stage.capacity.end());
  int together = 1;
  if (stage.pattern == Pattern::scatter || stage.pattern == Pattern::gather) {
    for (const Phase& phase : phases_)
      for (const Hop& hop : phase.hops) together = std::max(together, hop.count);
  }
  for (int r = 0; r < P_; ++r) largest = std::max(largest, stage.bytes(r, together));
  return largest;
}

void SizedAllreduce::run(Communicator& comm, std::span<std::byte> shared) {
  require(comm.size() == P_, "sized: a world of size ", comm.size(), ", but P = ", P_);
  require(shared.size() >= shared_bytes_, "sized: a shared buffer of ", shared.size(), " bytes, must be at least ",
          shared_bytes_);
  for (const Stage& stage : stages_) {
    switch (stage.pattern) {
      case Pattern::scatter:
      case Pattern::gather:
        halving(comm, stage, shared);
        break;
      case Pattern::ring_scatter:
      case Pattern::ring_gather:
        ring(comm, stage, shared);
        break;
      case Pattern::split:
        split(comm, stage, shared);
        break;
      case Pattern::small_reduce:
        small_reduce(comm, stage, shared);
        break;
    }
  }
}

// Forwards for a reduce-scatter, backwards for an allgather. Halving: one message per phase.
void SizedAllreduce::halving(Communicator& comm, const Stage& stage, std::span<std::byte> shared) {
  const bool gather = stage.pattern == Pattern::gather;
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    const Hop& hop = phases_[gather ? phases_.size() - 1 - i : i].hops.front();
    const std::size_t near = stage.bytes(comm.rank(), hop.count);
    const std::size_t far = stage.bytes(comm.rank() + hop.first, hop.count);
    const int shift = gather ? -hop.shift : hop.shift;
    const Send send{neighbour(comm, shift), shared.first(gather ? near : far)};
    const std::size_t due = gather ? far : near;
    Recv recv{neighbour(comm, -shift), shared.first(due), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "sized", recv, due);
  }
}

// Region r starts its way at rank r + 1 (scatter) or at its owner (gather).
void SizedAllreduce::ring(Communicator& comm, const Stage& stage, std::span<std::byte> shared) {
  const int P = comm.size();
  const int start = stage.pattern == Pattern::ring_scatter ? 1 : 0;
  for (int step = start; step < P - 1 + start; ++step) {
    const Send send{neighbour(comm, 1), shared.first(stage.bytes(comm.rank() + P - step, 1))};
    const std::size_t due = stage.bytes(comm.rank() + 2 * P - step - 1, 1);
    Recv recv{neighbour(comm, -1), shared.first(due), 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "sized", recv, due);
  }
}

// comm/allreduce_small.cc: every message has the size of one rank's values.
void SizedAllreduce::small_reduce(Communicator& comm, const Stage& stage, std::span<std::byte> shared) {
  const auto message = shared.first(stage.bytes(0, 1));
  for (auto phase = phases_.rbegin(); phase != phases_.rend(); ++phase) {
    const int shift = phase->from_blocks - phase->to_blocks;
    const Send send{neighbour(comm, -shift), message};
    Recv recv{neighbour(comm, shift), message, 0};
    comm.exchange({&send, 1}, {&recv, 1});
    expect_size(comm, "sized", recv, message.size());
  }
}

void SizedAllreduce::split(Communicator& comm, const Stage& stage, std::span<std::byte> shared) {
  const std::size_t capacity = stage.capacity[at(comm.rank())];
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int shift = 1; shift < P_; ++shift) {
    const int to = neighbour(comm, shift);
    sends.push_back({to, shared.first(stage.bytes(to, 1))});
    recvs.push_back({neighbour(comm, -shift), shared.first(capacity), 0});
    if (sends.size() < bucket_ && shift + 1 < P_) continue;
    comm.exchange(sends, recvs);
    sends.clear();
    recvs.clear();
  }
}

}  // namespace oktopk
