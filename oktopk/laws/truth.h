// SPDX-License-Identifier: Apache-2.0
// Law 2. The oracle: the right update of a step, computed from the selections of all ranks in one place, with std::map
// and none of the library's code. Truth compares each update of a stream of steps with it. The comparison is exact when
// `tolerance` is 0 (dyadic inputs). Otherwise sums may differ by `tolerance`, relative to the sum of magnitudes, and so
// may the choice between two nearly equal magnitudes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

using Entries = std::map<Index, double>;  // non-zero values by index

// Rounds to float after each addition, as the ranks do.
void oracle_add(Entries& a, const Entries& b);
Entries oracle_sum(std::span<const Entries> ranks);

// The k largest magnitudes (ties: smaller index).
Entries oracle_top(const Entries& x, std::size_t k);
// The entries with magnitude >= threshold.
Entries oracle_at_least(const Entries& x, double threshold);
// The k-th largest magnitude, or the smallest when there are fewer than k; 0 if none.
double oracle_kth(const Entries& x, std::size_t k);

// gTopk: merge along a binomial tree, keeping k at each node.
Entries oracle_gtopk(std::span<const Entries> selections, std::size_t k);
// SparDL: bags of 2^m blocks, pruned to ceil(k/P) before each send and at the end.
Entries oracle_spardl(std::span<const Entries> selections, Index n, std::size_t k);

// The inputs and the result of a step, of all ranks together.
struct StepRecord {
  std::vector<Entries> selections;  // by rank; for dense algorithms, the accumulators
  Entries memory;                   // m before the step, of all owners
  Entries update;
  bool refreshed = false;
};

class Truth {
 public:
  Truth(const Allreduce& allreduce, Index n, std::size_t k, double tolerance = 0)
      : allreduce_(allreduce), n_(n), k_(k), tolerance_(tolerance) {}

  // The number of wrong entries of the next step. Steps are checked in order, starting at `step`; a check that starts
  // in the middle does not know oktopk's threshold and infers it.
  std::size_t check(const StepRecord& record, std::uint64_t step);
  const std::string& detail() const { return detail_; }  // of the first wrong entry found

 private:
  std::size_t compare(const Entries& update, const Entries& expected, const Entries& slack);
  std::size_t check_largest(const Entries& update, const Entries& sum, const Entries& slack);
  std::size_t check_oktopk(const StepRecord& record, const Entries& sum, const Entries& slack, std::uint64_t step);
  std::size_t check_circulant(const StepRecord& record, const Entries& sum, const Entries& slack);
  std::size_t check_slots(const StepRecord& record);
  std::size_t check_lossy(const StepRecord& record, const Entries& sum, const Entries& magnitude);
  std::size_t wrong(Index i, double is, double should);

  const Allreduce& allreduce_;
  Index n_;
  std::size_t k_;
  double tolerance_;
  double threshold_ = -1;  // of oktopk by the paper's rule; negative: not known yet
  bool too_few_ = false;   // fewer than k sums at its last evaluation: the next step evaluates
  std::string detail_;
};

}  // namespace oktopk
