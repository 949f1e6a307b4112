// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/settled_owners.h"

#include <algorithm>
#include <cmath>

#include "oktopk/allreduce/parts/balance.h"
#include "oktopk/base/random.h"
#include "oktopk/comm/transports.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kMostEntries = 3e8;
constexpr std::uint64_t kLeastSteps = 24;
constexpr std::uint64_t kFirstMemory = 9;  // separates these random numbers from the supports'

// In [0, 1), from 32 bits.
float uniform(std::uint64_t bits) { return static_cast<float>(bits >> 8 & 0xffffffU) * 0x1p-24F; }

// The difference of two uniform numbers has a triangular distribution.
void start_memory(const Device& device, const SupportSpec& spec, RegionMemory& memory) {
  const auto P = static_cast<float>(spec.P);
  const float end = spec.kind == Support::correlated ? P / 2 : std::sqrt(P);
  Random random(spec.seed, kFirstMemory);
  Uninitialised<float> values(spec.n);
  for (float& x : values) {
    const std::uint64_t bits = random.next();
    x = end * (uniform(bits) - uniform(bits >> 32));
  }
  memory.load(device, {0, spec.n}, values);
}

// Adds all ranks' selections of a step to the memory; returns the sums that circulant's ranks exchange about them.
BlockTally add_selections(const Device& device, const SupportSpec& spec, std::uint64_t step, RegionMemory& memory,
                          std::vector<bool>& has_arrived) {
  BlockTally tally;
  has_arrived.assign(spec.n, false);
  SparseVector selection;
  for (int rank = 0; rank < spec.P; ++rank) {
    make_selection(spec, rank, step, selection);
    memory.add(device, selection);
    for (const Index i : selection.idx) has_arrived[i] = true;
    BlockTally mine = BlockTally::of(selection);
    mine.load = selection.size();
    tally += mine;
  }
  return tally;
}

}  // namespace

std::uint64_t settling_steps(const SupportSpec& spec) {
  const auto k = static_cast<double>(spec.k);
  const double steps = std::min(2 * spec.n / k, kMostEntries / (spec.P * k));
  return std::max(kLeastSteps, static_cast<std::uint64_t>(std::ceil(steps)));
}

SettledOwners settle_owners(const SupportSpec& spec) {
  SettledOwners owners;
  owners.cuts = voted_cuts(spec);
  const auto device = make_cpu_device();
  start_memory(*device, spec, owners.memory);
  const auto alone = make_thread_world(1);  // one rank stands for all: its counts are their sums
  Workspace work;
  SparseVector share;
  SparseVector put_back;
  std::vector<bool> has_arrived;
  const std::uint64_t steps = settling_steps(spec);
  for (; owners.steps < steps; ++owners.steps) {
    const BlockTally tally = add_selections(*device, spec, owners.steps, owners.memory, has_arrived);
    if (owners.threshold.follow(tally, spec.k)) {
      share.clear();
      owners.memory.append_largest(*device, owners.threshold.aim(spec.k), share);
      owners.threshold.refresh(*alone.front(), share.val, spec.k, work);
    }
    GlobalThreshold::Gathered seen;
    owners.memory.add_take(*device, {}, owners.threshold.value(), share, seen.near);
    for (const Index i : share.idx) seen.near.arrivals += has_arrived[i] ? 1 : 0;
    seen.values = share.val;
    seen.remembered = share.size() > spec.k ? share.size() - spec.k : 0;
    owners.threshold.observe(seen, spec.k);
    owners.gathered = static_cast<double>(share.size()) / static_cast<double>(spec.k);
    put_back.clear();
    keep_largest(share, spec.k, &put_back);
    owners.memory.add(*device, put_back);
  }
  return owners;
}

void SettledOwners::load_into(Allreduce& circulant, const SupportSpec& spec, int rank) const {
  StateWriter state;  // as circulant saves itself
  state.put(steps);
  state.put_all(std::span(cuts));
  threshold.save(state);
  RecutRule().save(state);
  const Bytes sealed = state.seal();
  StateReader reader(sealed);
  circulant.load(reader, spec.n, rank, spec.P);
  reader.finish();
  const Range mine = region(cuts, rank);
  circulant.load_memory(*make_cpu_device(), memory.values().subspan(mine.begin, mine.width()));
}

}  // namespace oktopk
