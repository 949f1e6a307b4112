// SPDX-License-Identifier: Apache-2.0
#include "oktopk/sparse/cuts.h"

#include <algorithm>
#include <numeric>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

__extension__ typedef unsigned __int128 Wide;  // load * width needs more than 64 bits

Index proportion(std::uint64_t whole, std::uint64_t numerator, std::uint64_t denominator) {
  return static_cast<Index>(Wide{whole} * numerator / denominator);
}

}  // namespace

Cuts equal_cuts(Index n, int P) {
  Cuts cuts(static_cast<std::size_t>(P) + 1);
  for (std::size_t r = 0; r < cuts.size(); ++r) cuts[r] = proportion(n, r, static_cast<std::uint64_t>(P));
  return cuts;
}

void vote_cuts(CooView selection, Index n, int P, std::span<std::uint64_t> votes) {
  const auto regions = static_cast<std::size_t>(P);
  OKTOPK_DCHECK(votes.size() + 1 == regions);
  for (std::size_t r = 1; r < regions; ++r)
    votes[r - 1] =
        selection.size() < regions ? proportion(n, r, regions) : selection.idx[r * selection.size() / regions];
}

Cuts cuts_from_votes(std::span<const std::uint64_t> summed_votes, Index n, int P) {
  Cuts cuts(static_cast<std::size_t>(P) + 1, 0);
  for (std::size_t r = 1; r < static_cast<std::size_t>(P); ++r)
    cuts[r] = static_cast<Index>(summed_votes[r - 1] / static_cast<std::uint64_t>(P));
  cuts.back() = n;
  return cuts;
}

Cuts cuts_from_load(const Cuts& old, std::span<const std::uint64_t> load) {
  const std::size_t regions = load.size();
  OKTOPK_DCHECK(old.size() == regions + 1);
  const std::uint64_t total = std::accumulate(load.begin(), load.end(), std::uint64_t{0});
  if (total == 0) return old;
  Cuts cuts(old);
  std::size_t from = 0;      // the old region that the next border falls into
  std::uint64_t before = 0;  // load of the regions left of it
  for (std::size_t r = 1; r < regions; ++r) {
    const auto target = static_cast<std::uint64_t>(Wide{total} * r / regions);
    while (from + 1 < regions && before + load[from] <= target) before += load[from++];
    const Range range = region(old, static_cast<int>(from));
    const std::uint64_t inside = std::min(target - before, load[from]);
    cuts[r] = range.begin + (load[from] == 0 ? 0 : proportion(range.width(), inside, load[from]));
  }
  return cuts;
}

Cuts take_cuts(StateReader& state, Index n, int P) {
  Cuts cuts = state.take_all<Index>();
  require(cuts.size() == static_cast<std::size_t>(P) + 1 && cuts.front() == 0 && cuts.back() == n &&
              std::is_sorted(cuts.begin(), cuts.end()),
          "state: its cuts do not divide [0, ", n, ") into ", P, " regions");
  return cuts;
}

}  // namespace oktopk
