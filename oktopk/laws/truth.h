// SPDX-License-Identifier: Apache-2.0
// Law 2 for one stream of steps: compares each update with the oracle. The comparison is exact when `tolerance` is 0
// (dyadic inputs). Otherwise sums may differ by `tolerance`, relative to the sum of magnitudes, and so may the choice
// between two nearly equal magnitudes.
#pragma once

#include <string>

#include "oktopk/allreduce/allreduce.h"
#include "oktopk/laws/oracle.h"

namespace oktopk {

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
